// shadowib inspect: what an image or a set holds.
#include <algorithm>
#include <filesystem>
#include <map>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/image_reader.h"
#include "hooks/imager/set/manifest.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/portable_set.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

struct InspectArguments {
  Common common;
  std::string target;
  bool maps = false, values = false;
};

using Objects = std::vector<std::pair<std::string, std::uint64_t>>;  // RDMA objects by kind

constexpr char kInspectExamples[] =
    "Examples:\n"
    "  shadowib inspect demo                               the newest set of job demo\n"
    "  shadowib inspect demo.0003                          all images of a set\n"
    "  shadowib inspect shadowib-ckpt/sets/demo.0003/IMAGE --maps\n"
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
           {"page_bytes", info.page_bytes},
           {"stored_bytes", info.stored_bytes},
           {"xxh3", to_hex(info.xxh3, sizeof(info.xxh3))}};
  for (const ImagePack& pack : info.packs)
    (*json)["packs"].push_back({{"file", pack.file}, {"bytes", pack.bytes}, {"used_bytes", pack.used_bytes}});
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

// Memory by kind: how much is mapped, and how much of it the image holds.
struct MemoryKind {
  const char* name;
  std::uint64_t mapped = 0, saved = 0, mappings = 0;
};

std::vector<MemoryKind> memory_kinds(const ImageInfo& info) {
  std::vector<MemoryKind> kinds = {{"heap"}, {"stack"}, {"anonymous"}, {"files"}, {"shared"}};
  for (const ImageMapping& m : info.mappings) {
    const bool shared = (m.flags & 1) != 0;
    MemoryKind& kind = kinds[shared                    ? 4
                             : m.path == "[heap]"      ? 0
                             : m.path == "[stack]"     ? 1
                             : m.path.starts_with("/") ? 3
                                                       : 2];
    kind.mapped += m.length;
    kind.saved += m.saved_bytes;
    ++kind.mappings;
  }
  std::erase_if(kinds, [](const MemoryKind& kind) { return kind.mappings == 0; });
  return kinds;
}

// "5: app, worker x 4", the most frequent first.
std::string counted(const std::vector<std::string>& names) {
  constexpr std::size_t kNamed = 8;
  std::map<std::string, std::size_t> counts;
  for (const std::string& name : names) ++counts[name];
  std::vector<std::pair<std::string, std::size_t>> list(counts.begin(), counts.end());
  std::stable_sort(list.begin(), list.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
  std::string text = std::to_string(names.size());
  for (std::size_t i = 0; i < list.size() && i < kNamed; ++i)
    text +=
        (i == 0 ? ": " : ", ") + list[i].first + (list[i].second > 1 ? " x " + std::to_string(list[i].second) : "");
  return list.size() > kNamed ? text + ", ..." : text;
}

// "1 context, 4 memory regions (2.0 MiB), 2 queue pairs (2 connected)".
std::string describe_rdma(const Objects& objects) {
  const auto count = [&objects](std::string_view kind) -> std::uint64_t {
    for (const auto& [name, number] : objects)
      if (name == kind) return number;
    return 0;
  };
  if (objects.empty()) return "not known: told by the manifest of a set that this shadowib has made";
  std::string text;
  for (const auto& [name, number] : objects) {
    if (number == 0 || name == "registered_bytes" || name == "connected_queue_pairs") continue;
    std::string words = name;
    for (char& c : words)
      if (c == '_') c = ' ';
    if (number == 1) words.pop_back();
    text += (text.empty() ? "" : ", ") + std::to_string(number) + " " + words;
    if (name == "memory_regions") text += " (" + human_bytes(count("registered_bytes")) + ")";
    if (name == "queue_pairs") text += " (" + std::to_string(count("connected_queue_pairs")) + " connected)";
  }
  return text.empty() ? "no objects" : text;
}

Status print_tables(const ImageInfo& info) {
  Table threads({"tid", "thread"});
  for (const ImageThread& t : info.threads) threads.add({std::to_string(t.tid), t.name});
  std::printf("\n");
  threads.print();
  std::string text;
  SHADOWIB_TRY(print_descriptors(info.descriptors, false, &text));
  std::printf("\ndescriptors\n%s\n", text.c_str());
  Table mappings({"start", "length", "prot", "saved", "mapping", "build-id"});
  for (const ImageMapping& m : info.mappings)
    mappings.add({hex_address(m.start), human_bytes(m.length), protection(m), human_bytes(m.saved_bytes),
                  m.path.empty() ? "anonymous" : m.path, m.build_id});
  mappings.print();
  return {};
}

Status print_image(const std::string& path, const ImageInfo& info, const Objects& objects, bool maps) {
  std::string command, text;
  std::vector<std::string> threads, descriptors;
  for (const std::string& word : info.command_line) command += (command.empty() ? "" : " ") + word;
  for (const ImageThread& t : info.threads) threads.push_back(t.name);
  SHADOWIB_TRY(print_descriptors(info.descriptors, true, &text));
  if (Json list; Json::parse(text, &list))
    for (const Json& d : list) descriptors.push_back(d.value("type", "unknown"));
  std::printf("image        %s\n", path.c_str());
  std::printf("written      format %u, by shadowib %s on kernel %s\n", info.format_version,
              info.shadowib_version.c_str(), info.kernel.c_str());
  std::printf("set          %s, member %u, generation %u\n", to_hex(info.set_id, sizeof(info.set_id)).c_str(),
              info.member, info.generation);
  std::printf("process      %d %s: %s\n", info.pid, info.comm.c_str(), command.c_str());
  std::printf("program      %s in %s\n", info.exe.c_str(), info.cwd.c_str());
  std::printf("size         %s, XXH3 %s\n", human_bytes(info.bytes).c_str(),
              to_hex(info.xxh3, sizeof(info.xxh3)).c_str());
  if (info.stored_bytes < info.page_bytes)
    std::printf("pages        %s, compressed to %s (%.1f %%)\n", human_bytes(info.page_bytes).c_str(),
                human_bytes(info.stored_bytes).c_str(),
                100 * static_cast<double>(info.stored_bytes) / static_cast<double>(info.page_bytes));
  for (const ImagePack& pack : info.packs)
    std::printf("pack         %s of %s\n", human_bytes(pack.used_bytes).c_str(), pack.file.c_str());
  std::printf("threads      %s\n", counted(threads).c_str());
  std::printf("RDMA         %s\n", describe_rdma(objects).c_str());
  std::printf("descriptors  %s\n", counted(descriptors).c_str());
  for (const MemoryKind& kind : memory_kinds(info))
    std::printf("%-12s %-10s %s in %llu mapping%s, %s of it saved\n", "memory", kind.name,
                human_bytes(kind.mapped).c_str(), static_cast<unsigned long long>(kind.mappings),
                kind.mappings == 1 ? "" : "s", human_bytes(kind.saved).c_str());
  return maps ? print_tables(info) : Status();
}

// What the manifest of the set that a file lies in says of its member.
Objects objects_beside(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  SetManifest m;
  if (!read_manifest(absolute.parent_path(), &m).ok()) return {};
  for (const SetMember& member : m.members)
    if (member.file == absolute.filename()) return member.objects;
  return {};
}

Status inspect_image(const InspectArguments& arguments, const std::string& path, const Objects& objects, Json* json) {
  ImageInfo info{};
  SHADOWIB_TRY(read_image(path, &info));
  if (!arguments.common.json) return print_image(path, info, objects, arguments.maps);
  SHADOWIB_TRY(image_json(path, info, json));
  for (const auto& [kind, number] : objects) (*json)["objects"][kind] = number;
  for (const MemoryKind& kind : memory_kinds(info))
    (*json)["memory"][kind.name] = {
        {"mapped_bytes", kind.mapped}, {"saved_bytes", kind.saved}, {"mappings", kind.mappings}};
  return {};
}

std::vector<std::string> host_names(const SetManifest& m, const SetMember& member) {
  std::vector<std::string> names;
  if (const PlacedPiece* piece = m.placement.find(member.file))
    for (const PieceHost& host : piece->hosts) names.push_back(host.name);
  return names;
}

// What the manifest knows of a member whose image is not on this host.
void inspect_missing(const SetManifest& m, const SetMember& member, const std::string& path, const Status& why,
                     Json* json) {
  if (json == nullptr) {
    std::printf("image        %s\n", path.c_str());
    std::printf("missing      %s\n", why.text());
    std::printf("set          %s, member %u, generation %u\n", m.set_id.c_str(), member.index, m.generation);
    std::printf("process      %d %s\n", member.pid, member.comm.c_str());
    std::printf("size         %s, XXH3 %s\n", human_bytes(member.bytes).c_str(), member.xxh3.c_str());
    std::printf("RDMA         %s\n", describe_rdma(member.objects).c_str());
    return;
  }
  *json = {{"path", path},           {"missing", why.text()},      {"set_id", m.set_id},
           {"member", member.index}, {"generation", m.generation}, {"pid", member.pid},
           {"comm", member.comm},    {"bytes", member.bytes},      {"xxh3", member.xxh3}};
  for (const auto& [kind, number] : member.objects) (*json)["objects"][kind] = number;
}

Status inspect_portable(const InspectArguments& arguments, const SetManifest& m, Json* json) {
  PortableSet set;
  SHADOWIB_TRY(read_portable_set(m, &set));
  if (arguments.common.json && arguments.values) return Status(Code::kUsage, 0, "--values does not go with --json");
  (*json)["kind"] = set.is_bsp ? "bsp" : "processes";
  if (set.is_bsp) (*json)["superstep"] = set.superstep;
  if (!arguments.common.json && set.is_bsp)
    std::printf("superstep  %llu\n\n", static_cast<unsigned long long>(set.superstep));
  for (std::size_t i = 0; i < m.members.size(); ++i) {
    const SetMember& member = m.members[i];
    const PortableSet::Member& program = set.members[i];
    std::string command;
    for (const std::string& word : program.command) command += (command.empty() ? "" : " ") + word;
    (*json)["images"].push_back({{"path", m.path + "/" + member.file},
                                 {"member", member.index},
                                 {"pid", member.pid},
                                 {"host", member.host},
                                 {"target", program.target},
                                 {"visits", program.visits},
                                 {"cwd", program.directory},
                                 {"command_line", program.command},
                                 {"bytes", member.bytes},
                                 {"xxh3", member.xxh3}});
    if (arguments.common.json) continue;
    std::printf("member %u   %s, %s, saved at visit %llu of a site\n           %s\n           in %s\n", member.index,
                program.target.c_str(), human_bytes(member.bytes).c_str(),
                static_cast<unsigned long long>(program.visits), command.c_str(), program.directory.c_str());
    if (arguments.values && print_values(m.path + "/" + member.file) != 0)
      return Status::of(Code::kCorrupt, 0, "shadowib-values cannot read %.200s/%.60s", m.path.c_str(),
                        member.file.c_str());
  }
  return {};
}

Status inspect_set(const InspectArguments& arguments, const std::string& path, Json* json) {
  const Common& common = arguments.common;
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
  if (m.placement.store.is_near()) {
    (*json)["store"] = m.placement.store.text();
    if (!common.json) std::printf("store      %s\n\n", m.placement.store.text().c_str());
  }
  if (is_portable(m)) return inspect_portable(arguments, m, json);
  if (arguments.values) return Status(Code::kUsage, 0, "--values is for portable images only");
  bool first = true;
  for (const SetMember& member : m.members) {
    Json image;
    if (!common.json && !first) std::printf("\n");
    first = false;
    std::string image_path;
    if (const Status found = find_image(m, member, &image_path); found.ok())
      SHADOWIB_TRY(inspect_image(arguments, image_path, member.objects, &image));
    else
      inspect_missing(m, member, image_path, found, common.json ? &image : nullptr);
    if (m.placement.store.is_near()) image["hosts"] = Json(host_names(m, member));
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
  if (arguments.target.ends_with(".psi") && fs::is_regular_file(arguments.target, error)) {
    return common.json ? fail(common, Status(Code::kUsage, 0, "--json goes with sets of portable images only"))
                       : print_values(arguments.target);
  } else if (fs::is_regular_file(arguments.target, error) && newest_set(common.directory, arguments.target).empty()) {
    status = inspect_image(arguments, arguments.target, objects_beside(arguments.target), &json);
  } else {
    if (Status s = choose_set(&common, arguments.target, &path); !s.ok()) return fail(common, s);
    status = inspect_set(arguments, path, &json);
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
  command->add_flag("--maps", arguments->maps, "Every thread, descriptor and mapping, too, one a line");
  command->add_flag("--values", arguments->values, "Of portable images: every variable, too, by name");
  add_common(command, &arguments->common);
  command->footer(kInspectExamples);
  command->callback([arguments] { return inspect(*arguments); });
}

}  // namespace shadowib::cli
