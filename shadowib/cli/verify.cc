// shadowib verify: reads every byte of a set.
#include <algorithm>
#include <map>

#include "hooks/imager/descriptors.h"
#include "shadowib/base/this_host.h"
#include "shadowib/cli/changed_files.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/keepers.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/sets.h"

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

// The hosts that have each image whole and right.
using Copies = std::map<std::string, std::set<std::string>>;

// Images that are here by every byte, and what keepers say of others. Without copies all must be here.
Status verify_copies(const std::string& directory, const std::string& path, SetManifest* manifest, Copies* copies) {
  SHADOWIB_TRY(read_manifest(path, manifest));
  if (!manifest->placement.store.has_copies()) return verify_with_progress(path, manifest);
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
  MemberTables tables;
  SHADOWIB_TRY(read_tables(*manifest, &tables));
  return match_descriptors(tables);
}

bool is_degraded(const SetManifest& manifest, const Copies& copies) {
  return std::any_of(manifest.members.begin(), manifest.members.end(), [&copies](const SetMember& member) {
    const auto at = copies.find(member.file);
    return at != copies.end() && at->second.size() < 2;
  });
}

Status judge_copies(const SetManifest& manifest, const Copies& copies, bool strict) {
  if (!manifest.placement.store.has_copies()) return {};
  for (const SetMember& member : manifest.members) {
    const auto at = copies.find(member.file);
    const std::size_t hosts = at == copies.end() ? 0 : at->second.size();
    if (hosts == 0)
      return Status::of(
          Code::kCorrupt, ENOENT,
          "set %.120s: %.40s is on no host that answers; start `shadowib keeper %.64s` where it may lie",
          manifest.path.c_str(), member.file.c_str(), manifest.job.c_str());
    if (strict && hosts < 2)
      return Status::of(Code::kCorrupt, 0, "set %.120s: %.40s is on one host only; `shadowib rebuild` copies it",
                        manifest.path.c_str(), member.file.c_str());
  }
  return {};
}

int verify(VerifyArguments& arguments) {
  Common& common = arguments.common;
  std::string path;
  SetManifest manifest;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = choose_set(&common, arguments.set, &path); !s.ok()) return fail(common, s);
  Copies copies;
  if (Status s = verify_copies(common.directory, path, &manifest, &copies); !s.ok()) return fail(common, s);
  if (Status s = judge_copies(manifest, copies, arguments.strict); !s.ok()) return fail(common, s);
  std::uint64_t bytes = 0;
  for (const SetMember& member : manifest.members) bytes += member.bytes;
  std::vector<ChangedFile> files;
  const bool told =
      changed_files(manifest, {}, &files).ok();  // an image of another shadowib may tell nothing of them
  if (common.json) {
    print_json({{"set", manifest.path},
                {"ok", true},
                {"members", manifest.members.size()},
                {"bytes", bytes},
                {"degraded", is_degraded(manifest, copies)},
                {"changed_files", told ? to_json(files) : Json(nullptr)}});
    return 0;
  }
  std::printf("%s is intact: %zu image%s, %s\n", manifest.path.c_str(), manifest.members.size(),
              manifest.members.size() == 1 ? "" : "s", human_bytes(bytes).c_str());
  if (is_degraded(manifest, copies))
    std::printf("an image is on one host only: the set does not survive its loss until `shadowib rebuild %s`\n",
                manifest.path.c_str());
  for (const ChangedFile& file : files) std::printf("%s\n", describe_change(file).c_str());
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
  command->add_flag("--strict", arguments->strict, "Fail, too, if an image lacks its copy on another host");
  add_common(command, &arguments->common);
  command->footer(kVerifyExamples);
  command->callback([arguments] { return verify(*arguments); });
}

}  // namespace shadowib::cli
