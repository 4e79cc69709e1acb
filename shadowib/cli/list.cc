// shadowib list: the checkpoint sets of a directory.
#include <algorithm>
#include <filesystem>
#include <map>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/near_directory.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/far_sets.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/survival.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr char kListExamples[] =
    "Examples:\n"
    "  shadowib list                        newest last\n"
    "  shadowib list --json | jq -r '.sets[-1].path'\n\n"
    "Only committed sets are shown. Column `survives`: how many hosts may be lost for good; `all but DIR` of a set "
    "in\nDIR. The last column is `ok` if the manifest is, `only far` for a set that `restart`\n"
    "fetches; `shadowib verify` reads the images "
    "too.\n";

Json set_json(const ListedSet& set) {
  const SetManifest& m = set.manifest;
  Json json{{"name", name_of(m)}, {"path", m.path}, {"job", m.job}, {"number", m.number}};
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
  if (m.cluster) {
    json["cluster"] = m.cluster->name;
    json["sn"] = m.cluster->record.sn;
    json["incarnation"] = m.cluster->record.incarnation;
    json["forced"] = m.cluster->record.forced;
  }
  if (!m.federation.clusters.empty()) {
    json["clusters"] = Json::array();
    for (const SetFederation::Cluster& cluster : m.federation.clusters) json["clusters"].push_back(cluster.name);
  }
  json["survives"] = survival_json(m.placement);
  if (m.placement.store.is_near()) {
    json["store"] = m.placement.store.text();
    json["near"] = near_set_path(m.placement.place, m.job, m.set_id);
  }
  return json;
}

std::string cluster_text(const SetManifest& m) { return m.cluster ? m.cluster->name : ""; }

std::string sn_text(const SetManifest& m) {
  return m.cluster ? std::to_string(m.cluster->record.sn) + (m.cluster->record.forced ? ", forced" : "") : "";
}

// By job.
using FarSets = std::map<std::string, std::vector<FarSet>>;

// The places that a set has been flushed to.
Json places_of(const SetManifest& manifest, const FarSets& far) {
  Json places = Json::array();
  if (const auto job = far.find(manifest.job); job != far.end())
    for (const FarSet& set : job->second)
      if (set.set_id == manifest.set_id) places.push_back(set.far);
  return places;
}

// Sets that are in far places and not here.
Json only_far(const std::vector<ListedSet>& sets, const FarSets& far) {
  Json all = Json::array();
  for (const auto& [job, list] : far)
    for (const FarSet& set : list) {
      if (std::any_of(sets.begin(), sets.end(), [&](auto& here) { return here.manifest.set_id == set.set_id; }))
        continue;
      all.push_back({{"name", set_name(job, set.number)},
                     {"job", job},
                     {"number", set.number},
                     {"set_id", set.set_id},
                     {"created", set.created},
                     {"members", set.members},
                     {"bytes", set.bytes},
                     {"far", set.far}});
    }
  return all;
}

int list(Common& common) {
  std::vector<ListedSet> sets;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = require_directory(common); !s.ok()) return fail(common, s);
  if (Status s = list_sets(common.directory, &sets); !s.ok()) return fail(common, s);
  FarSets far;
  for (const std::string& job : jobs_in_far(common.directory)) far[job] = sets_in_far(common.directory, job);
  Json all = Json::array();
  // Told if there is a choice: most directories have central sets only.
  const bool with_store = std::any_of(sets.begin(), sets.end(),
                                      [](const ListedSet& set) { return set.manifest.placement.store.is_near(); });
  std::vector<std::string> columns{"set",  "created", "generation", "members",
                                   "size", "backend", "survives",   "manifest"};
  const bool with_clusters =
      std::any_of(sets.begin(), sets.end(), [](const ListedSet& set) { return set.manifest.cluster.has_value(); });
  if (with_clusters) columns.insert(columns.begin() + 1, {"cluster", "SN"});
  if (with_store) columns.insert(columns.end() - 2, "store");
  if (!far.empty()) columns.insert(columns.end() - 1, "far");
  Table table(columns);
  for (const ListedSet& set : sets) {
    Json json = set_json(set);
    if (!far.empty()) json["far"] = places_of(set.manifest, far);
    all.push_back(json);
    // A set is called by its directory, which a copy may have another name than at its birth.
    std::string name = fs::path(set.manifest.path).filename();
    std::vector<std::string> row{name, "", "", "", "", "", "", set.status.text()};
    if (set.status.ok())
      row = {name,
             set.manifest.created,
             std::to_string(set.manifest.generation),
             std::to_string(set.manifest.members.size()),
             human_bytes(json["bytes"].get<std::uint64_t>()),
             set.manifest.backend,
             survival_text(set.manifest.placement),
             "ok"};
    if (with_clusters) row.insert(row.begin() + 1, {cluster_text(set.manifest), sn_text(set.manifest)});
    if (with_store) row.insert(row.end() - 2, set.status.ok() ? set.manifest.placement.store.text() : "");
    if (!far.empty()) row.insert(row.end() - 1, json["far"].empty() ? "" : "yes");
    table.add(row);
  }
  const Json elsewhere = only_far(sets, far);
  for (const Json& set : elsewhere) {
    std::vector<std::string> row{set["name"].get<std::string>(),
                                 set["created"].get<std::string>(),
                                 "",
                                 std::to_string(set["members"].get<std::uint64_t>()),
                                 human_bytes(set["bytes"].get<std::uint64_t>()),
                                 "",
                                 "",
                                 "yes",
                                 "only far"};
    if (with_clusters) row.insert(row.begin() + 1, {"", ""});
    if (with_store) row.insert(row.end() - 3, "");
    table.add(row);
  }
  if (common.json)
    print_json({{"directory", common.directory}, {"sets", all}, {"only_far", elsewhere}});
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
