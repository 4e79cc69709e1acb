// shadowib verify: reads every byte of a set.
#include "shadowib/cli/changed_files.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace {

struct VerifyArguments {
  Common common;
  std::string set;
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

int verify(VerifyArguments& arguments) {
  Common& common = arguments.common;
  std::string path;
  SetManifest manifest;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = choose_set(&common, arguments.set, &path); !s.ok()) return fail(common, s);
  if (Status s = verify_with_progress(path, &manifest); !s.ok()) return fail(common, s);
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
                {"changed_files", told ? to_json(files) : Json(nullptr)}});
    return 0;
  }
  std::printf("%s is intact: %zu image%s, %s\n", manifest.path.c_str(), manifest.members.size(),
              manifest.members.size() == 1 ? "" : "s", human_bytes(bytes).c_str());
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
  add_common(command, &arguments->common);
  command->footer(kVerifyExamples);
  command->callback([arguments] { return verify(*arguments); });
}

}  // namespace shadowib::cli
