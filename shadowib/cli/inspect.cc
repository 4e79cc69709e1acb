// shadowib inspect: what an image or a set holds.
#include <filesystem>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/image_reader.h"
#include "hooks/imager/set/manifest.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

struct InspectArguments {
  Common common;
  std::string target;
};

constexpr char kInspectExamples[] =
    "Examples:\n"
    "  shadowib inspect demo.0003                          all images of a set\n"
    "  shadowib inspect shadowib-ckpt/sets/demo.0003/IMAGE   one image: threads, mappings, descriptors\n"
    "  shadowib inspect demo.0003 --json | jq '.images[].mappings | length'\n";

std::string hex_address(std::uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "%012llx", static_cast<unsigned long long>(value));
  return text;
}

std::string protection(const ImageMapping& m) {
  return std::string(m.protection & 1 ? "r" : "-") + (m.protection & 2 ? "w" : "-") + (m.protection & 4 ? "x" : "-") +
         (m.flags & 1 ? "s" : "p");
}

Status image_json(const std::string& path, const ImageInfo& info, Json* json) {
  *json = {{"path", path},
           {"format_version", info.format_version},
           {"shadowib_version", info.shadowib_version},
           {"set_id", to_hex(info.set_id, sizeof(info.set_id))},
           {"member", info.member},
           {"generation", info.generation},
           {"pid", info.pid},
           {"exe", info.exe},
           {"comm", info.comm},
           {"cwd", info.cwd},
           {"kernel", info.kernel},
           {"command_line", info.command_line},
           {"bytes", info.bytes},
           {"xxh3", to_hex(info.xxh3, sizeof(info.xxh3))}};
  Json threads = Json::array(), mappings = Json::array();
  for (const ImageThread& t : info.threads) threads.push_back({{"tid", t.tid}, {"name", t.name}});
  for (const ImageMapping& m : info.mappings)
    mappings.push_back({{"start", hex_address(m.start)},
                        {"length", m.length},
                        {"protection", protection(m)},
                        {"offset", m.offset},
                        {"path", m.path},
                        {"build_id", m.build_id},
                        {"saved_bytes", m.saved_bytes}});
  (*json)["threads"] = threads;
  (*json)["mappings"] = mappings;
  std::string text;
  SHADOWIB_TRY(print_descriptors(info.descriptors, true, &text));
  Json descriptors;
  (*json)["descriptors"] = Json::parse(text, &descriptors) ? descriptors : Json(text);
  return {};
}

Status print_image(const std::string& path, const ImageInfo& info) {
  std::string command;
  for (const std::string& word : info.command_line) command += (command.empty() ? "" : " ") + word;
  std::printf("image      %s\n", path.c_str());
  std::printf("format     %u, written by shadowib %s on kernel %s\n", info.format_version,
              info.shadowib_version.c_str(), info.kernel.c_str());
  std::printf("set        %s, member %u, generation %u\n", to_hex(info.set_id, sizeof(info.set_id)).c_str(),
              info.member, info.generation);
  std::printf("process    %d %s: %s\n", info.pid, info.comm.c_str(), command.c_str());
  std::printf("program    %s in %s\n", info.exe.c_str(), info.cwd.c_str());
  std::printf("size       %s, XXH3 %s\n", human_bytes(info.bytes).c_str(),
              to_hex(info.xxh3, sizeof(info.xxh3)).c_str());
  Table threads({"tid", "thread"});
  for (const ImageThread& t : info.threads) threads.add({std::to_string(t.tid), t.name});
  std::printf("\n");
  threads.print();
  Table mappings({"start", "length", "prot", "saved", "mapping", "build-id"});
  for (const ImageMapping& m : info.mappings)
    mappings.add({hex_address(m.start), human_bytes(m.length), protection(m), human_bytes(m.saved_bytes),
                  m.path.empty() ? "anonymous" : m.path, m.build_id});
  std::printf("\n");
  mappings.print();
  std::string text;
  SHADOWIB_TRY(print_descriptors(info.descriptors, false, &text));
  std::printf("\ndescriptors\n%s", text.c_str());
  return {};
}

Status inspect_image(const Common& common, const std::string& path, Json* json) {
  ImageInfo info{};
  SHADOWIB_TRY(read_image(path, &info));
  return common.json ? image_json(path, info, json) : print_image(path, info);
}

Status inspect_set(const Common& common, const std::string& path, Json* json) {
  SetManifest m;
  SHADOWIB_TRY(read_manifest(path, &m));
  *json = {{"path", m.path},
           {"set_id", m.set_id},
           {"job", m.job},
           {"number", m.number},
           {"generation", m.generation},
           {"created", m.created},
           {"backend", m.backend},
           {"shadowib_version", m.shadowib_version},
           {"files", Json::array()},
           {"images", Json::array()}};
  for (const auto& [file, build_id] : m.files) (*json)["files"].push_back({{"path", file}, {"build_id", build_id}});
  if (!common.json)
    std::printf("set        %s\njob        %s, number %u, generation %u\ncreated    %s by shadowib %s on %s\n\n",
                m.path.c_str(), m.job.c_str(), m.number, m.generation, m.created.c_str(), m.shadowib_version.c_str(),
                m.backend.c_str());
  bool first = true;
  for (const SetMember& member : m.members) {
    Json image;
    if (!common.json && !first) std::printf("\n");
    first = false;
    SHADOWIB_TRY(inspect_image(common, m.path + "/" + member.file, &image));
    (*json)["images"].push_back(image);
  }
  return {};
}

int inspect(InspectArguments& arguments) {
  Common& common = arguments.common;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  Json json;
  std::string path;
  Status status;
  std::error_code error;
  if (fs::is_regular_file(arguments.target, error)) {
    status = inspect_image(common, arguments.target, &json);
  } else {
    if (Status s = choose_set(&common, arguments.target, &path); !s.ok()) return fail(common, s);
    status = inspect_set(common, path, &json);
  }
  if (!status.ok()) return fail(common, status);
  if (common.json) print_json(json);
  return 0;
}

}  // namespace

void add_inspect(Command& program) {
  auto arguments = std::make_shared<InspectArguments>();
  Command* command = program.add_subcommand("inspect", "Show what an image or a set holds");
  command
      ->add_option("IMAGE", arguments->target,
                   "An image file, a set's path or name, or a job, which stands for\nits newest set")
      ->required()
      ->completed_by(kSetNames)
      ->not_empty("a set");
  add_common(command, &arguments->common);
  command->footer(kInspectExamples);
  command->callback([arguments] { return inspect(*arguments); });
}

}  // namespace shadowib::cli
