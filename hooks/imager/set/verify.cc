#include "hooks/imager/set/verify.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "hooks/imager/set/manifest.h"
#include "hooks/imager/set/near_images.h"
#include "hooks/store/store.h"

namespace shadowib {
namespace {

Status corrupt(const SetManifest& manifest, const std::string& file, const char* why) {
  return Status::of(Code::kCorrupt, 0, "set %.180s: %.80s %s", manifest.path.c_str(), file.c_str(), why);
}

using Chosen = std::set<std::uint32_t>;  // none: all

bool is_chosen(const Chosen& chosen, const SetMember& member) {
  return chosen.empty() || chosen.contains(member.index);
}

Status check_file(const SetManifest& manifest, const std::string& name, const std::string& path,
                  std::uint64_t bytes) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0)
    return errno == ENOENT ? corrupt(manifest, name, "is missing") : file_error(errno, "open", path);
  if (!S_ISREG(info.st_mode)) return corrupt(manifest, name, "is not a regular file");
  if (static_cast<std::uint64_t>(info.st_size) != bytes)
    return corrupt(manifest, name,
                   static_cast<std::uint64_t>(info.st_size) < bytes ? "is truncated" : "is longer than recorded");
  return {};
}

// Every image is there with its size and nothing else is: cheap, so before any byte is read. Near images are looked
// for if they are chosen.
Status check_files(const SetManifest& manifest, const Chosen& chosen) {
  std::set<std::string> expected{kManifestFile, kManifestSumFile};
  if (manifest.placement.store.is_near()) {
    MemberTables tables;
    SHADOWIB_TRY(read_tables(manifest, &tables));
    expected.insert(kPlacementFile);
  }
  for (const SetMember& member : manifest.members) {
    if (manifest.placement.store.is_near()) expected.insert(table_file(member.index));
    if (lies_near(manifest, member)) {
      if (!is_chosen(chosen, member)) continue;
    } else {
      expected.insert(member.file);
    }
    std::string path;
    SHADOWIB_TRY(find_image(manifest, member, &path));
    SHADOWIB_TRY(check_file(manifest, member.file, path, member.bytes));
    for (const SetPack& pack : member.packs) {
      expected.insert(pack.file);
      SHADOWIB_TRY(check_file(manifest, pack.file, manifest.path + "/" + pack.file, pack.bytes));
    }
  }
  std::vector<std::string> pieces;
  SHADOWIB_TRY(open_store_of(manifest.path)->pieces(manifest.path, &pieces));
  for (const std::string& name : pieces)
    if (expected.count(name) == 0) return corrupt(manifest, name, "does not belong to the set");
  return {};
}

// The runtime of portable programs checks each record when it reads the image.
Status check_portable_image(const SetManifest& manifest, const SetMember& member) {
  std::string sum;
  SHADOWIB_TRY(sum_of_file(manifest.path + "/" + member.file, &sum));
  return sum == member.xxh3 ? Status()
                            : corrupt(manifest, member.file, "is not the image the manifest records (XXH3 differs)");
}

Status check_image(const SetVerifier& verifier, const SetManifest& manifest, const SetMember& member,
                   ImageInfo* info) {
  std::string path;
  SHADOWIB_TRY(find_image(manifest, member, &path));
  Status read = verifier.read_image(path, info);
  if (!read.ok())
    return Status::of(read.code(), read.error(), "set %.140s: %.30s: %.200s", manifest.path.c_str(),
                      member.file.c_str(), read.text());
  if (to_hex(info->set_id, sizeof(info->set_id)) != manifest.set_id)
    return corrupt(manifest, member.file, "belongs to another checkpoint set");
  if (info->member != member.index) return corrupt(manifest, member.file, "is the image of another member");
  if (info->bytes != member.bytes || (info->has_xxh3 && to_hex(info->xxh3, sizeof(info->xxh3)) != member.xxh3))
    return corrupt(manifest, member.file, "is not the image the manifest records (XXH3 differs)");
  const auto is_listed = [&member](const ImagePack& pack) {
    return std::any_of(member.packs.begin(), member.packs.end(),
                       [&pack](const SetPack& p) { return p.file == pack.file && p.bytes == pack.bytes; });
  };
  if (info->packs.size() != member.packs.size() || !std::all_of(info->packs.begin(), info->packs.end(), is_listed))
    return corrupt(manifest, member.file, "disagrees with the manifest about packs");
  if (info->pid != member.pid || info->generation != member.generation.value_or(manifest.generation))
    return corrupt(manifest, member.file, "disagrees with the manifest about pid or generation");
  return {};
}

}  // namespace

Status verify_set_with(const SetVerifier& verifier, const std::string& set_path, SetManifest* manifest,
                       void (*progress)(std::uint64_t, std::uint64_t), const std::set<std::uint32_t>& members) {
  SHADOWIB_TRY(read_manifest(set_path, manifest));
  SHADOWIB_TRY(check_files(*manifest, members));
  std::uint64_t total = 0, done = 0;
  for (const SetMember& member : manifest->members)
    if (is_chosen(members, member)) total += member.bytes;
  std::map<std::uint32_t, std::string> tables;
  if (progress != nullptr) progress(0, total);
  for (const SetMember& member : manifest->members) {
    if (!is_chosen(members, member)) continue;
    ImageInfo info{};
    if (is_portable(*manifest)) {
      SHADOWIB_TRY(check_portable_image(*manifest, member));
    } else {
      SHADOWIB_TRY(check_image(verifier, *manifest, member, &info));
      tables[member.index] = std::move(info.descriptors);
    }
    done += member.bytes;
    if (progress != nullptr) progress(done, total);
  }
  return members.empty() && !is_portable(*manifest) ? verifier.match_descriptors(tables) : Status();
}

}  // namespace shadowib
