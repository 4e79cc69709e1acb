// Finding the images of near sets.
#include "hooks/imager/set/near_images.h"

#define XXH_INLINE_ALL
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "hooks/imager/set/manifest.h"
#include "hooks/job/near_directory.h"
#include "shadowib/base/processes.h"
#include "shadowib/base/this_host.h"

namespace shadowib {
namespace {

std::string names_of(const PlacedPiece& piece) {
  std::string names;
  for (const PieceHost& host : piece.hosts) names += (names.empty() ? "" : ", ") + host.name;
  return names;
}

}  // namespace

bool lies_near(const SetManifest& manifest, const SetMember& member) {
  const PlacedPiece* piece = manifest.placement.find(member.file);
  return piece != nullptr && !piece->hosts.empty();
}

std::string table_file(std::uint32_t member) { return "member-" + std::to_string(member) + ".table"; }

std::string encode_table(const std::string& table) {
  XXH128_canonical_t sum;
  XXH128_canonicalFromHash(&sum, XXH3_128bits(table.data(), table.size()));
  return to_hex(sum.digest, sizeof(sum.digest)) + "\n" + table;
}

Status find_image(const SetManifest& manifest, const SetMember& member, std::string* path) {
  struct stat info {};
  *path = manifest.path + "/" + member.file;
  if (!lies_near(manifest, member)) return {};
  const SetPlacement& placement = manifest.placement;
  // A directory that somebody else has made is as good as none.
  *path = near_set_path(placement.place, manifest.job, manifest.set_id) + "/" + member.file;
  if (check_near_root(placement.place, false).ok() && ::lstat(path->c_str(), &info) == 0) return {};
  const PlacedPiece& piece = *placement.find(member.file);
  // The name, too: a host that has booted anew has another id.
  const bool only_here = std::all_of(piece.hosts.begin(), piece.hosts.end(), [](const PieceHost& host) {
    return host.id == this_host() || host.name == host_name();
  });
  if (only_here)
    return Status::of(Code::kNotFound, ENOENT,
                      "set %.70s: %.30s was saved on this host, %.64s (%s), and is there no more; use another set; "
                      "its place was %s",
                      std::filesystem::path(manifest.path).filename().c_str(), member.file.c_str(),
                      names_of(piece).c_str(), placement.store.text().c_str(), path->c_str());
  return Status::of(
      Code::kNotFound, ENOENT,
      // The path comes last and whole: its end tells one set from another.
      "set %.70s: %.30s was saved on host %.64s (%s) and is not on this one; restart that member there, "
      "or use another set; its place there is %s",
      std::filesystem::path(manifest.path).filename().c_str(), member.file.c_str(), names_of(piece).c_str(),
      placement.store.text().c_str(), path->c_str());
}

Status read_tables(const SetManifest& manifest, MemberTables* tables) {
  const auto store = open_store_of(manifest.path);
  for (const SetMember& member : manifest.members) {
    std::string content;
    const Status status = store->read(manifest.path, table_file(member.index), &content);
    if (status.error() == ENOENT)
      return Status::of(Code::kCorrupt, ENOENT, "set %.200s has no %s: it is damaged, use another",
                        manifest.path.c_str(), table_file(member.index).c_str());
    SHADOWIB_TRY(status);
    const std::size_t end = content.find('\n');
    std::string table = end == std::string::npos ? "" : content.substr(end + 1);
    if (encode_table(table) != content)
      return Status::of(Code::kCorrupt, 0, "set %.200s: %s was altered or torn; use another", manifest.path.c_str(),
                        table_file(member.index).c_str());
    if (!table.empty()) (*tables)[member.index] = std::move(table);
  }
  return {};
}

}  // namespace shadowib
