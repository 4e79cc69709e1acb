// shadowib list: the checkpoint sets of a directory.
#include <algorithm>
#include <filesystem>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/near_directory.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/output.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr char kListExamples[] =
    "Examples:\n"
    "  shadowib list                        newest last\n"
    "  shadowib list --json | jq -r '.sets[-1].path'\n\n"
    "Only committed sets are shown. The last column is `ok` if the manifest is; `shadowib verify` reads the images "
    "too.\n";

Json set_json(const ListedSet& set) {
  const SetManifest& m = set.manifest;
  Json json{{"name", set_name(m.job, m.number)}, {"path", m.path}, {"job", m.job}, {"number", m.number}};
  json["ok"] = set.status.ok();
  if (!set.status.ok()) {
    json["error"] = set.status.text();
    return json;
  }
  std::uint64_t bytes = 0;
  for (const SetMember& member : m.members) bytes += member.bytes;
  json["set_id"] = m.set_id;
  json["created"] = m.created;
  json["generation"] = m.generation;
  json["backend"] = m.backend;
  json["shadowib_version"] = m.shadowib_version;
  json["members"] = m.members.size();
  json["bytes"] = bytes;
  if (m.placement.store.is_near()) {
    json["store"] = m.placement.store.text();
    json["near"] = near_set_path(m.placement.place, m.job, m.set_id);
  }
  return json;
}

int list(Common& common) {
  std::vector<ListedSet> sets;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = require_directory(common); !s.ok()) return fail(common, s);
  if (Status s = list_sets(common.directory, &sets); !s.ok()) return fail(common, s);
  Json all = Json::array();
  // Told if there is a choice: most directories have central sets only.
  const bool with_store = std::any_of(sets.begin(), sets.end(),
                                      [](const ListedSet& set) { return set.manifest.placement.store.is_near(); });
  std::vector<std::string> columns{"set", "created", "generation", "members", "size", "backend", "manifest"};
  if (with_store) columns.insert(columns.end() - 1, "store");
  Table table(columns);
  for (const ListedSet& set : sets) {
    Json json = set_json(set);
    all.push_back(json);
    // A set is called by its directory, which a copy may have another name than at its birth.
    std::string name = fs::path(set.manifest.path).filename();
    std::vector<std::string> row{name, "", "", "", "", "", set.status.text()};
    if (set.status.ok())
      row = {name,
             set.manifest.created,
             std::to_string(set.manifest.generation),
             std::to_string(set.manifest.members.size()),
             human_bytes(json["bytes"].get<std::uint64_t>()),
             set.manifest.backend,
             "ok"};
    if (with_store) row.insert(row.end() - 1, set.status.ok() ? set.manifest.placement.store.text() : "");
    table.add(row);
  }
  if (common.json)
    print_json({{"directory", common.directory}, {"sets", all}});
  else if (table.empty())
    std::fprintf(stderr, "shadowib: no checkpoint sets in %s\n", common.directory.c_str());
  else
    table.print();
  return 0;
}

}  // namespace

void add_list(Command& program) {
  auto common = std::make_shared<Common>();
  Command* command = program.add_subcommand("list", "Show the checkpoint sets");
  add_common(command, common.get());
  command->footer(kListExamples);
  command->callback([common] { return list(*common); });
}

}  // namespace shadowib::cli
