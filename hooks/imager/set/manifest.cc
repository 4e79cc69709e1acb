#include "hooks/imager/set/manifest.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "hooks/federation/record_json.h"
#include "hooks/job/cluster.h"
#include "hooks/job/job_directory.h"
#include "hooks/store/files.h"
#include "shadowib/base/json_value.h"

namespace shadowib {
namespace {

bool is_hex(const std::string& text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

Json to_json(const SetMember& m) {
  Json json{{"index", m.index}, {"pid", m.pid},   {"file", m.file},           {"bytes", m.bytes},    {"xxh3", m.xxh3},
            {"comm", m.comm},   {"host", m.host}, {"settle_ns", m.settle_ns}, {"save_ns", m.save_ns}};
  for (const auto& [kind, count] : m.objects) json["objects"][kind] = count;
  for (const SetPack& pack : m.packs) json["packs"][pack.file] = pack.bytes;
  if (m.generation) json["generation"] = *m.generation;
  return json;
}

// get() casts; a fraction or a number that is too large is a damaged manifest.
template <typename T>
void take_number(const Json& json, const char* name, T* to) {
  const Json& value = json.at(name);
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<T>(value.get<std::uint64_t>())
                        : value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>());
  if (!fits) throw std::out_of_range(std::string(name) + " is no whole number of its range");
  *to = value.is_number_unsigned() ? static_cast<T>(value.get<std::uint64_t>())
                                   : static_cast<T>(value.get<std::int64_t>());
}

const Json& elements(const Json& json, const char* name) {
  const Json& list = json.at(name);
  if (!list.is_array()) throw std::domain_error(std::string(name) + " is no array");
  return list;
}

SetMember member_from(const Json& json) {
  SetMember m;
  take_number(json, "index", &m.index);
  take_number(json, "pid", &m.pid);
  json.at("file").get_to(m.file);
  take_number(json, "bytes", &m.bytes);
  json.at("xxh3").get_to(m.xxh3);
  json.at("comm").get_to(m.comm);
  json.at("host").get_to(m.host);
  take_number(json, "settle_ns", &m.settle_ns);
  take_number(json, "save_ns", &m.save_ns);
  if (json.contains("objects"))
    for (const auto& [kind, count] : json.at("objects").items()) {
      m.objects.emplace_back(kind, 0);
      take_number(json.at("objects"), kind.c_str(), &m.objects.back().second);
    }
  if (json.contains("packs"))
    for (const auto& [file, bytes] : json.at("packs").items()) {
      m.packs.push_back({file, 0});
      take_number(json.at("packs"), file.c_str(), &m.packs.back().bytes);
    }
  if (json.contains("generation")) take_number(json, "generation", &m.generation.emplace());
  return m;
}

Json to_json(const SetFederation& federation) {
  Json json{{"policy", federation.policy}, {"clusters", Json::array()}};
  for (const SetFederation::Cluster& cluster : federation.clusters) {
    Json members = Json::array();
    for (const std::uint32_t member : cluster.members) members.push_back(member);
    json["clusters"].push_back({{"name", cluster.name}, {"index", cluster.index}, {"members", members}});
  }
  return json;
}

SetFederation federation_from(const Json& json) {
  SetFederation federation;
  json.at("policy").get_to(federation.policy);
  for (const Json& entry : elements(json, "clusters")) {
    SetFederation::Cluster cluster;
    entry.at("name").get_to(cluster.name);
    take_number(entry, "index", &cluster.index);
    if (!valid_cluster_name(cluster.name) || cluster.index != federation.clusters.size())
      throw std::domain_error("a cluster has no valid name, or its index is out of order");
    for (const Json& member : elements(entry, "members")) {
      if (!member.is_number_unsigned() || !std::in_range<std::uint32_t>(member.get<std::uint64_t>()))
        throw std::out_of_range("a member of a cluster is no index");
      cluster.members.push_back(member.get<std::uint32_t>());
    }
    federation.clusters.push_back(std::move(cluster));
  }
  return federation;
}

SetCluster cluster_from(const Json& json) {
  SetCluster cluster;
  if (Status s = federation::decode_record(json.at("cluster"), &cluster.record, &cluster.name); !s.ok())
    throw std::domain_error(s.text());
  if (!valid_cluster_name(cluster.name)) throw std::domain_error("the cluster has no valid name");
  json.at("claim").get_to(cluster.claim);
  if (json.contains("asked_ms")) json.at("asked_ms").get_to(cluster.asked_ms);
  if (json.contains("logged_since"))
    for (const Json& since : elements(json, "logged_since")) {
      if (!since.is_number_unsigned()) throw std::out_of_range("logged_since has no time");
      cluster.logged_since.push_back(since.get<std::uint64_t>());
    }
  if (json.contains("trimmed"))
    for (const Json& sn : elements(json, "trimmed")) {
      if (!sn.is_number_unsigned() || !std::in_range<federation::Sn>(sn.get<std::uint64_t>()))
        throw std::out_of_range("trimmed has no number of a CLC");
      cluster.trimmed.push_back(sn.get<federation::Sn>());
    }
  if (!json.contains("wired")) return cluster;
  cluster.wired.emplace();
  for (const Json& index : elements(json, "wired")) {
    if (!index.is_number_unsigned() || index.get<std::uint64_t>() >= cluster.record.after.clusters)
      throw std::out_of_range("wired names no cluster");
    cluster.wired->push_back(index.get<unsigned>());
  }
  return cluster;
}

void manifest_from(const Json& json, SetManifest* manifest) {
  json.at("set_id").get_to(manifest->set_id);
  json.at("job").get_to(manifest->job);
  take_number(json, "number", &manifest->number);
  take_number(json, "generation", &manifest->generation);
  json.at("shadowib_version").get_to(manifest->shadowib_version);
  json.at("created").get_to(manifest->created);
  json.at("backend").get_to(manifest->backend);
  manifest->members.clear();
  for (const Json& member : elements(json, "members")) manifest->members.push_back(member_from(member));
  manifest->files.clear();
  for (const Json& file : elements(json, "files"))
    manifest->files.emplace_back(file.at("path").get<std::string>(), file.at("build_id").get<std::string>());
  manifest->cluster.reset();
  manifest->federation = {};
  if (json.contains("cluster")) manifest->cluster = cluster_from(json);
  if (json.contains("federation")) manifest->federation = federation_from(json.at("federation"));
}

bool is_pack_of(std::uint32_t member, const std::string& file) {
  const std::string before = "member-" + std::to_string(member) + ".";
  return file.size() > before.size() + 32 && is_hex(file.substr(before.size(), 32), 32) &&
         file == pack_file(member, file.substr(before.size(), 32));
}

// What a manifest with an agreeing checksum must still be, however it came to be.
const char* implausible(const SetManifest& manifest) {
  if (!is_hex(manifest.set_id, 32)) return "its set_id is not 32 hex digits";
  if (manifest.members.empty()) return "it has no member";
  for (std::size_t i = 0; i < manifest.members.size(); ++i) {
    const SetMember& m = manifest.members[i];
    if (m.file.empty() || m.file[0] == '.' || m.file.find('/') != std::string::npos || m.file == kManifestFile ||
        m.file == kManifestSumFile || m.file == kPlacementFile)
      return "a member's file is not a plain name";
    for (const SetPack& pack : m.packs)
      if (!is_pack_of(m.index, pack.file)) return "a member's pack has no name of a pack";
    if (!is_hex(m.xxh3, 32)) return "a member's xxh3 is not 32 hex digits";
    for (std::size_t j = 0; j < i; ++j)
      if (manifest.members[j].index == m.index || manifest.members[j].file == m.file)
        return "two members share an index or a file";
  }
  return nullptr;
}

bool has_generations(const SetManifest& manifest) {
  return std::any_of(manifest.members.begin(), manifest.members.end(),
                     [](const SetMember& m) { return m.generation.has_value(); });
}

}  // namespace

std::string to_hex(const std::uint8_t* bytes, std::size_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text.push_back(kDigits[bytes[i] >> 4]);
    text.push_back(kDigits[bytes[i] & 15]);
  }
  return text;
}

std::string pack_file(std::uint32_t member, const std::string& set_id_hex) {
  return "member-" + std::to_string(member) + "." + set_id_hex + ".pages";
}

std::string owner_of(const SetManifest& manifest) {
  return set_owner(manifest.job, manifest.cluster ? manifest.cluster->name : "");
}

std::string name_of(const SetManifest& manifest) { return set_name(owner_of(manifest), manifest.number); }

bool has_packs(const SetManifest& manifest) {
  return std::any_of(manifest.members.begin(), manifest.members.end(),
                     [](const SetMember& m) { return !m.packs.empty(); });
}

std::string encode_manifest(const SetManifest& manifest) {
  const bool tells_wiring = manifest.cluster && manifest.cluster->wired;
  const int format = is_portable(manifest) ? kPortableManifestFormat
                     : tells_wiring || (has_generations(manifest) && !manifest.placement.store.is_near())
                         ? kRecoveryManifestFormat
                     : manifest.cluster                   ? kClusterManifestFormat
                     : has_packs(manifest)                ? kPackedManifestFormat
                     : manifest.placement.store.is_near() ? kNearManifestFormat
                                                          : kManifestFormat;
  Json json{{"format", format},
            {"set_id", manifest.set_id},
            {"job", manifest.job},
            {"number", manifest.number},
            {"generation", manifest.generation},
            {"shadowib_version", manifest.shadowib_version},
            {"created", manifest.created},
            {"backend", manifest.backend},
            {"members", Json::array()},
            {"files", Json::array()}};
  for (const SetMember& member : manifest.members) json["members"].push_back(to_json(member));
  for (const auto& [path, build_id] : manifest.files)
    json["files"].push_back({{"path", path}, {"build_id", build_id}});
  if (manifest.cluster) {
    json["cluster"] = federation::encode_record(manifest.cluster->record, manifest.cluster->name);
    json["claim"] = manifest.cluster->claim;
    json["asked_ms"] = manifest.cluster->asked_ms;
    json["logged_since"] = Json::array();
    for (const std::uint64_t since : manifest.cluster->logged_since) json["logged_since"].push_back(since);
    json["trimmed"] = Json::array();
    for (const federation::Sn sn : manifest.cluster->trimmed) json["trimmed"].push_back(sn);
    if (manifest.cluster->wired) {
      json["wired"] = Json::array();
      for (const unsigned index : *manifest.cluster->wired) json["wired"].push_back(index);
    }
  }
  if (!manifest.federation.clusters.empty()) json["federation"] = to_json(manifest.federation);
  // A path or process name need not be UTF-8; what is not is replaced, as nothing compares it by bytes.
  return json.dump(2) + "\n";
}

std::string manifest_sum(std::string_view json) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(json.data(), json.size()));
  return to_hex(canonical.digest, sizeof(canonical.digest)) + "  " + kManifestFile + "\n";
}

Status sum_of_file(const std::string& path, std::string* sum) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return file_error(errno, "open", path);
  struct stat info {};
  void* bytes = MAP_FAILED;
  if (::fstat(fd, &info) == 0 && info.st_size > 0)
    bytes = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (info.st_size > 0 && bytes == MAP_FAILED) return file_error(error, "read", path);
  const auto size = static_cast<std::size_t>(info.st_size);
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes == MAP_FAILED ? nullptr : bytes, size));
  if (bytes != MAP_FAILED) ::munmap(bytes, size);
  *sum = to_hex(canonical.digest, sizeof(canonical.digest));
  return {};
}

Status decode_manifest(std::string_view json, std::string_view sum, const std::string& name, SetManifest* manifest,
                       bool* is_near) {
  if (manifest_sum(json) != sum)
    return Status::of(Code::kCorrupt, 0,
                      "set %.200s: %s does not agree with %s; the set was altered or torn, use another", name.c_str(),
                      kManifestFile, kManifestSumFile);
  try {
    Json parsed;
    if (std::string why; !Json::parse(json, &parsed, &why)) throw std::runtime_error(why);
    int format = 0;
    take_number(parsed, "format", &format);
    if (format < kManifestFormat || format > kLatestManifestFormat)
      return Status::of(Code::kVersion, 0, "set %.200s has manifest format %d, this shadowib reads %d to %d",
                        name.c_str(), format, kManifestFormat, kLatestManifestFormat);
    if (is_near != nullptr) *is_near = format == kNearManifestFormat;
    manifest_from(parsed, manifest);
    if (is_portable(*manifest) != (format == kPortableManifestFormat))
      throw std::domain_error("its format and its backend do not go together");
  } catch (const std::exception& error) {
    return Status::of(Code::kCorrupt, 0, "set %.150s: manifest: %.150s", name.c_str(), error.what());
  }
  if (const char* why = implausible(*manifest); why != nullptr)
    return Status::of(Code::kCorrupt, 0, "set %.200s: manifest: %s", name.c_str(), why);
  return {};
}

}  // namespace shadowib
