#include "hooks/command/coordinator_manifest.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "hooks/job/members.h"
#include "hooks/job/protocol.h"

namespace shadowib {
namespace {

// Lines "<build-id hex or -> <path>", merged by path.
void add_build_ids(const std::string& lines, std::map<std::string, std::string>* build_ids) {
  for (std::size_t at = 0; at < lines.size();) {
    std::size_t end = lines.find('\n', at);
    if (end == std::string::npos) break;
    const std::string line = lines.substr(at, end - at);
    at = end + 1;
    const std::size_t space = line.find(' ');
    if (space != std::string::npos)
      (*build_ids)[line.substr(space + 1)] = line[0] == '-' ? "" : line.substr(0, space);
  }
}

// "name=number", with blanks between.
std::vector<std::pair<std::string, std::uint64_t>> numbers_of(const std::string& text) {
  std::vector<std::pair<std::string, std::uint64_t>> numbers;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    if (const std::size_t equals = word.find('='); equals != std::string::npos)
      numbers.emplace_back(word.substr(0, equals), std::strtoull(word.c_str() + equals + 1, nullptr, 10));
  return numbers;
}

// "<set id>=BYTES", with blanks between, of one member's packs.
std::vector<SetPack> packs_of(std::uint32_t member, const std::string& text) {
  std::vector<SetPack> packs;
  for (const auto& [set_id, bytes] : numbers_of(text)) packs.push_back({pack_file(member, set_id), bytes});
  return packs;
}

// A library that does not know of incremental images has written an ordinary one.
std::string why_whole(const Fields& fields) {
  if (!fields.contains("incremental")) return "its library is of an older shadowib";
  return field_text(fields, "why_whole");
}

// As above: such a library has compressed nothing.
std::string why_plain(const Fields& fields, Compression asked) {
  const bool plain = asked != Compression::kNone && !fields.contains("compress");
  return plain ? "its library is of an older shadowib" : "";
}

}  // namespace

Status describe_results(const std::vector<MemberStatus>& members, const MemberResults& results, SetManifest* manifest,
                        CheckpointReport* report) {
  std::map<std::string, std::string> build_ids;
  for (const auto& member : members) {
    Fields fields;
    if (!decode_fields(results.saved.at(member.index), &fields))
      return Status::of(Code::kVersion, 0, "%.200s speaks another protocol", describe(member).c_str());
    const auto generation = static_cast<std::uint32_t>(field_number(fields, "generation"));
    manifest->backend = field_text(fields, "backend");
    auto settle = static_cast<std::int64_t>(field_number(fields, "settle_ns"));
    auto save = static_cast<std::int64_t>(field_number(fields, "save_ns"));
    // Members of clusters that have gone back are of later ones, and are who they were to all others.
    for (std::size_t i = 0; i < manifest->members.size(); ++i)
      if (member.cluster.empty() && manifest->members[i].generation != generation)
        return Status::of(Code::kRefused, 0, "%.200s is of generation %u, those before it are of generation %u",
                          describe(member).c_str(), generation, *manifest->members[i].generation);
    manifest->generation = std::max(manifest->generation, generation);
    manifest->members.push_back({.index = member.index,
                                 .pid = member.pid,
                                 .file = field_text(fields, "image"),
                                 .bytes = field_number(fields, "bytes"),
                                 .xxh3 = field_text(fields, "xxh3"),
                                 .comm = member.comm,
                                 .host = member.host,
                                 .settle_ns = settle,
                                 .save_ns = save,
                                 .objects = numbers_of(field_text(fields, "objects")),
                                 .packs = packs_of(member.index, field_text(fields, "packs")),
                                 .generation = generation});
    report->members.push_back({.index = member.index,
                               .pid = member.pid,
                               .host = member.host,
                               .comm = member.comm,
                               .settle_ns = settle,
                               .save_ns = save,
                               .stopped_ns = static_cast<std::int64_t>(field_number(fields, "stopped_ns")),
                               .bytes = field_number(fields, "bytes"),
                               .save = field_text(fields, "save"),
                               .why_stopped = field_text(fields, "why_stopped"),
                               .borrowed_bytes = field_number(fields, "borrowed"),
                               .why_whole = why_whole(fields),
                               .compression = field_text(fields, "compress"),
                               .page_bytes = field_number(fields, "page_bytes"),
                               .why_plain = why_plain(fields, report->compression),
                               .phases = numbers_of(field_text(fields, "phases"))});
    add_build_ids(results.files.at(member.index), &build_ids);
  }
  for (SetMember& member : manifest->members)
    if (member.generation == manifest->generation) member.generation.reset();
  manifest->files.assign(build_ids.begin(), build_ids.end());
  return {};
}

void describe_placement(const StoreSpec& store, const std::string& place,
                        const std::map<std::uint32_t, std::string>& host_of, SetManifest* manifest) {
  manifest->placement = {.store = store, .place = place};
  for (const SetMember& member : manifest->members)
    manifest->placement.pieces.push_back({member.file, {{host_of.at(member.index), member.host}}});
}

}  // namespace shadowib
