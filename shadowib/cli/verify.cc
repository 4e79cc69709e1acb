// shadowib verify: reads every byte of a set.
#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "hooks/imager/bonds.h"
#include "hooks/imager/descriptors.h"
#include "hooks/imager/restore/members.h"
#include "shadowib/base/this_host.h"
#include "shadowib/cli/changed_files.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/decode.h"
#include "shadowib/cli/far_look.h"
#include "shadowib/cli/keepers.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/sets.h"
#include "shadowib/cli/survival.h"

namespace shadowib::cli {
namespace {

struct VerifyArguments {
  Common common;
  std::string set;
  bool strict = false;
};

constexpr char kVerifyExamples[] =
    "Examples:\n"
    "  shadowib verify demo.0003\n"
    "  shadowib verify /backup/demo.0003 && echo intact\n\n"
    "Checks the manifest, every byte of every image, that all images are there and belong to this set, and that "
    "pipes\n"
    "and connections have both their ends in it. Exit code 5: damaged. Then tells of files that members write to and "
    "that\n"
    "have another length than at the checkpoint: see restart --files.\n";

Json to_json(const std::vector<ChangedFile>& files) {
  static constexpr const char* kStates[] = {"grown", "shared", "replaced", "shorter", "missing"};
  Json list = Json::array();
  for (const ChangedFile& file : files)
    list.push_back({{"path", file.path},
                    {"state", kStates[file.state]},
                    {"bytes", file.state == ChangedFile::kMissing ? Json(nullptr) : Json(file.now)},
                    {"bytes_at_checkpoint", file.recorded},
                    {"roll_back_cuts", file.state == ChangedFile::kGrown},
                    {"writer", file.writer.empty() ? Json(nullptr) : Json(file.writer)}});
  return list;
}

// Members that a restart brings to one host since they write to a file by one offset.
struct Writers {
  std::uint32_t one, other;
  std::string why;
};

std::vector<Writers> find_writers(const SetManifest& manifest) {
  std::vector<Writers> writers;
  OpenedSet set;
  const auto note = [&writers](const Bond& bond) {
    writers.push_back({bond.one, bond.other, bond.refusal().text()});
  };
  Status status = manifest.placement.store.is_near() ? open_tables(manifest, &set) : open_members(manifest, {}, &set);
  if (status.ok()) (void)find_offset_bonds(set.tables, Streams::kOfOthers, note).ok();
  close_members(&set);
  return writers;
}

Json to_json(const std::vector<Writers>& writers) {
  Json list = Json::array();
  for (const Writers& w : writers) {
    Json members = Json::array();
    for (const std::uint32_t member : {w.one, w.other}) members.push_back(member);
    list.push_back({{"members", members}, {"why", w.why}});
  }
  return list;
}

// The hosts that have each image, and parity, whole and right.
using Copies = FileHolders;

// Images that are here by every byte, and what keepers say of others. A store that is not redundant has all here.
Status verify_copies(const std::string& directory, const std::string& path, SetManifest* manifest, Copies* copies) {
  SHADOWIB_TRY(read_manifest(path, manifest));
  if (!manifest->placement.store.is_redundant()) return verify_with_progress(path, manifest);
  *copies = find_holders(directory, *manifest);
  std::set<std::uint32_t> here;
  for (const SetMember& member : manifest->members) {
    std::string image;
    if (find_image(*manifest, member, &image).ok()) here.insert(member.index);
  }
  for (const std::uint32_t member : here) {
    const Status status = verify_with_progress(path, manifest, {member});
    if (!status.ok() && status.code() != Code::kCorrupt) return status;
    for (const SetMember& m : manifest->members)
      if (m.index == member && status.ok()) (*copies)[m.file].insert(shadowib::this_host());
    if (!status.ok()) std::fprintf(stderr, "shadowib: %s\n", status.text());
  }
  for (const ParityGroup& group : manifest->placement.groups)
    for (const ParityGroup::Host& host : group.hosts)
      if (check_piece(near_id(*manifest), host.parity).ok())
        (*copies)[host.parity.file].insert(shadowib::this_host());
  MemberTables tables;
  SHADOWIB_TRY(read_tables(*manifest, &tables));
  return match_descriptors(tables);
}

std::size_t hosts_with(const std::string& file, const Copies& copies) {
  const auto at = copies.find(file);
  return at == copies.end() ? 0 : at->second.size();
}

// The first image that is on one host only, "" if there is none.
std::string lone_image(const SetManifest& manifest, const Copies& copies) {
  const auto lone = std::find_if(manifest.members.begin(), manifest.members.end(),
                                 [&](const SetMember& m) { return hosts_with(m.file, copies) < 2; });
  return lone == manifest.members.end() ? "" : lone->file;
}

// Why the set survives less than its store promises; "" if it does not.
std::string degraded(const std::string& directory, const SetManifest& manifest, const Copies& copies) {
  const StoreSpec& store = manifest.placement.store;
  if (store.has_copies()) {
    const std::string image = lone_image(manifest, copies);
    return image.empty() ? "" : image + " is on one host only";
  }
  if (!store.has_parity()) return "";
  const int hosts = survived_losses(manifest, copies, find_domains(directory, manifest.job));
  if (hosts >= store.parities) return "";
  return "it survives the loss of " + std::to_string(std::max(hosts, 0)) + " hosts now, of the " +
         std::to_string(store.parities) + " that " + store.text() + " promises";
}

// Every image is somewhere, or can be made.
Status judge_copies(const SetManifest& manifest, const Copies& copies) {
  if (!manifest.placement.store.is_redundant()) return {};
  for (const SetMember& member : manifest.members) {
    if (hosts_with(member.file, copies) > 0) continue;
    const ParityGroup* group = manifest.placement.group_of(member.file);
    if (group != nullptr && check_available(*group, member.file, copies).ok()) continue;
    return Status::of(
        Code::kCorrupt, ENOENT,
        "set %.160s: %.30s is on no host that answers%s; start `shadowib keeper %.64s` where it may lie",
        manifest.path.c_str(), member.file.c_str(), group != nullptr ? ", and too little is left to make it" : "",
        manifest.job.c_str());
  }
  return {};
}

// What far places have of a set, by place. The first failure, if `strict` asks for one.
Status verify_far(const std::string& directory, const SetManifest& manifest, bool strict, Json* places) {
  *places = Json::array();
  Status first;
  for (const FarSet& set : sets_in_far(directory, manifest.job)) {
    if (set.set_id != manifest.set_id) continue;
    const Status status = check_far_set(directory, manifest.job, set, strict);
    places->push_back({{"far", set.far}, {"ok", status.ok()}, {"error", status.ok() ? Json() : Json(status.text())}});
    if (strict && first.ok()) first = status;
  }
  return first;
}

// A set that is in a far place and not here. kNotFound: DIR knows of none.
Status verify_only_far(const std::string& directory, const std::string& path, Json* place) {
  std::string job;
  std::uint32_t number = 0;
  const std::string name = std::filesystem::path(path).filename();
  const Status none(Code::kNotFound, 0, "");
  if (!parse_set_name(name, &job, &number)) return none;
  const std::vector<FarSet> sets = sets_in_far(directory, job);
  const FarSet* set = find_far_set(sets, number);
  if (set == nullptr) return none;
  *place = Json{{"set", name}, {"far", set->far}, {"ok", true}, {"members", set->members}, {"bytes", set->bytes}};
  const Status status = check_far_set(directory, job, *set, true);
  return status.code() == Code::kNotFound ? Status(Code::kCorrupt, ENOENT, status.text()) : status;
}

int verify(VerifyArguments& arguments) {
  Common& common = arguments.common;
  std::string path;
  SetManifest manifest;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = choose_set(&common, arguments.set, &path); !s.ok()) return fail(common, s);
  Copies copies;
  if (Status s = verify_copies(common.directory, path, &manifest, &copies); s.code() == Code::kNotFound) {
    Json place;
    const Status far = verify_only_far(common.directory, path, &place);
    if (!far.ok()) return fail(common, far.code() == Code::kNotFound ? s : far);
    if (common.json)
      print_json(place);
    else
      std::printf("%s is not here, and intact in %s\n", place["set"].get<std::string>().c_str(),
                  place["far"].get<std::string>().c_str());
    return 0;
  } else if (!s.ok()) {
    return fail(common, s);
  }
  if (Status s = judge_copies(manifest, copies); !s.ok()) return fail(common, s);
  const std::string weakness = degraded(common.directory, manifest, copies);
  if (arguments.strict && !weakness.empty())
    return fail(common, Status::of(Code::kCorrupt, 0, "set %.190s: %.150s; `shadowib rebuild` mends that",
                                   manifest.path.c_str(), weakness.c_str()));
  Json places;
  if (Status s = verify_far(common.directory, manifest, arguments.strict, &places); !s.ok()) return fail(common, s);
  std::uint64_t bytes = 0;
  for (const SetMember& member : manifest.members) bytes += member.bytes;
  std::vector<ChangedFile> files;
  const bool told =
      changed_files(manifest, {}, &files).ok();  // an image of another shadowib may tell nothing of them
  const std::vector<Writers> writers = find_writers(manifest);
  if (common.json) {
    print_json({{"set", manifest.path},
                {"ok", true},
                {"members", manifest.members.size()},
                {"bytes", bytes},
                {"degraded", !weakness.empty()},
                {"far", places},
                {"changed_files", told ? to_json(files) : Json(nullptr)},
                {"one_offset", to_json(writers)}});
    return 0;
  }
  std::printf("%s is intact: %zu image%s, %s\n", manifest.path.c_str(), manifest.members.size(),
              manifest.members.size() == 1 ? "" : "s", human_bytes(bytes).c_str());
  if (!weakness.empty()) std::printf("%s, until `shadowib rebuild %s`\n", weakness.c_str(), manifest.path.c_str());
  for (const Json& place : places)
    if (place["ok"].get<bool>())
      std::printf("it is in %s, too\n", place["far"].get<std::string>().c_str());
    else
      std::printf("it was flushed to %s, where it is damaged or out of reach: %s\n",
                  place["far"].get<std::string>().c_str(), place["error"].get<std::string>().c_str());
  for (const ChangedFile& file : files) std::printf("%s\n", describe_change(file).c_str());
  // A line for each would be a screen for a large job.
  if (!writers.empty()) std::printf("%s\n", writers.front().why.c_str());
  if (writers.size() > 1)
    std::printf("so do %zu more pair%s of members; --json names them\n", writers.size() - 1,
                writers.size() == 2 ? "" : "s");
  return 0;
}

}  // namespace

void add_verify(Command& program) {
  auto arguments = std::make_shared<VerifyArguments>();
  Command* command = program.add_subcommand("verify", "Check every byte of a checkpoint set");
  command
      ->add_option(
          "SET", arguments->set,
          "The set: its path, its name as `shadowib list` shows it, or a\njob, which stands for its newest set")
      ->required()
      ->completed_by(kSetNames)
      ->not_empty("a set");
  command->add_flag("--strict", arguments->strict,
                    "Fail, too, if the set survives less than its store promises, as\nafter the loss of a host");
  add_common(command, &arguments->common);
  command->footer(kVerifyExamples);
  command->callback([arguments] { return verify(*arguments); });
}

}  // namespace shadowib::cli
