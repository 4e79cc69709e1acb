#include "shadowib/cli/far_fetch.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "hooks/imager/set/manifest.h"
#include "hooks/imager/set/near_images.h"
#include "hooks/job/job_directory.h"
#include "hooks/store/files.h"
#include "hooks/store/hex_hash.h"
#include "shadowib/cli/far_sets.h"
#include "shadowib/cli/far_turns.h"
#include "shadowib/cli/keepers.h"
#include "shadowib/cli/piece_progress.h"
#include "shadowib/exchange/raw_files.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kStep = 1 << 20;

// The settings by which a lost set is looked for: as chosen, else where the set is known to be.
Status settings_for(const FarOptions& options, const std::string& directory, const std::string& job,
                    const std::string& set_id, std::uint32_t number, FarSettings* settings) {
  SHADOWIB_TRY(choose_far(options, directory, job, settings));
  if (!options.far.empty()) return {};
  const std::vector<FarSet> known = sets_in_far(directory, job);
  const FarSet* line = set_id.empty() ? find_far_set(known, number) : nullptr;
  for (const FarSet& set : known)
    if (!set_id.empty() && set.set_id == set_id) line = &set;
  if (line == nullptr) return {};
  SHADOWIB_TRY(parse_far(line->far, &settings->spec));
  settings->known = true;
  return {};
}

// Into a new file, checked and synced.
Status fetch_file(FarPlace& place, const std::string& name, const Piece& piece, const std::string& path,
                  PieceProgress* progress) {
  const Moved moved = progress->moved();
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return file_error(errno, "create", path);
  Status status = get_piece(place, name, piece, [&](std::string_view part) {
    const int error = write_whole(fd, part);
    moved(part.size());
    return error == 0 ? Status() : file_error(error, "write", path);
  });
  if (status.ok() && ::fsync(fd) != 0) status = file_error(errno, "sync", path);
  ::close(fd);
  if (!status.ok()) ::unlink(path.c_str());
  return status;
}

Status stage_from_far(FarPlace& place, const SetManifest& manifest, Store& store, const std::string& staging,
                      std::string* path) {
  const std::string prefix = far_prefix(manifest.job, manifest.set_id);
  PieceProgress progress("fetching " + set_name(manifest.job, manifest.number) + " from the far place",
                         bytes_of(manifest.members));
  for (const SetMember& member : manifest.members) {
    SHADOWIB_TRY(fetch_file(place, prefix + member.file, piece_of(member), staging + "/" + member.file, &progress));
    progress.next(member.bytes);
  }
  return commit_set(store, staging, manifest, path);
}

bool is_good_file(const std::string& path, const SetMember& member) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  HexHash hash;
  std::vector<char> buffer(kStep);
  std::uint64_t bytes = 0;
  for (ssize_t n = 0; (n = ::read(fd, buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    bytes += static_cast<std::uint64_t>(n);
    hash.add({buffer.data(), static_cast<std::size_t>(n)});
  }
  ::close(fd);
  return bytes == member.bytes && hash.hex() == member.xxh3;
}

Status fetch_image(FarPlace& place, const std::string& directory, const SetManifest& manifest,
                   const SetMember& member, PieceProgress* progress) {
  const std::string name = far_prefix(manifest.job, manifest.set_id) + member.file;
  const Piece piece{member.file, member.bytes, member.xxh3};
  const fs::path set(manifest.path);
  const std::string part = set.parent_path() / staging_name(manifest.job, manifest.number);
  SHADOWIB_TRY(fetch_file(place, name, piece, part, progress));
  Status status;
  if (lies_near(manifest, member)) {
    const int fd = ::open(part.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) status = file_error(errno, "open", part);
    if (fd >= 0)
      status = write_piece({manifest.placement.place, manifest.job, manifest.set_id}, directory, piece,
                           [&](char* to, std::size_t bytes) -> Status {
                             for (std::size_t at = 0; at < bytes;) {
                               const ssize_t n = ::read(fd, to + at, bytes - at);
                               if (n <= 0 && errno != EINTR) return file_error(n == 0 ? EIO : errno, "read", part);
                               if (n > 0) at += static_cast<std::size_t>(n);
                             }
                             return {};
                           });
    if (fd >= 0) ::close(fd);
    ::unlink(part.c_str());
    return status;
  }
  const std::string path = set / member.file;
  if (::rename(part.c_str(), path.c_str()) != 0) {
    status = file_error(errno, "write", path);
    ::unlink(part.c_str());
    return status;
  }
  return sync_path(set);
}

}  // namespace

Status fetch_set(const std::string& directory, const std::string& job, std::uint32_t number,
                 const FarOptions& options, std::string* path) {
  FarSettings settings;
  SHADOWIB_TRY(settings_for(options, directory, job, "", number, &settings));
  const std::string wanted = number == 0 ? "a set of job " + job : set_name(job, number);
  if (!settings.known)
    return Status::of(Code::kNotFound, ESRCH,
                      "there is no %.80s in %.150s; name a far place with --far if one has it", wanted.c_str(),
                      directory.c_str());
  const std::unique_ptr<FarPlace> place = settings.open();
  SHADOWIB_TRY(place->check());
  FetchTurn turn;
  std::error_code error;
  SHADOWIB_TRY(turn.take(directory, job));
  std::vector<FarSet> sets;
  SHADOWIB_TRY(read_far_list(*place, directory, job, settings.spec.text(), &sets));
  const FarSet* line = find_far_set(sets, number);
  if (line == nullptr)
    return Status::of(Code::kNotFound, ENOENT, "there is no %.80s in %.100s, and none in %.120s", wanted.c_str(),
                      directory.c_str(), settings.spec.text().c_str());
  *path = sets_path(directory) + "/" + set_name(job, line->number);
  SetManifest manifest;
  if (fs::exists(*path, error)) return {};  // another command of this restart has fetched it
  SHADOWIB_TRY(far_manifest(*place, job, line->set_id, &manifest));
  const std::unique_ptr<Store> store = open_directory_store(directory);
  std::string staging;
  std::uint32_t next = 0;
  SHADOWIB_TRY(store->stage(job, &staging, &next));
  if (const Status status = stage_from_far(*place, manifest, *store, staging, path); !status.ok()) {
    (void)store->discard(staging).ok();
    return status;
  }
  FarSet known = *line;
  known.far = settings.spec.text();
  std::fprintf(stderr, "shadowib: fetched %s from %s\n", path->c_str(), known.far.c_str());
  return record_in_far(directory, job, known);
}

Status fetch_images(const std::string& directory, const SetManifest& manifest, const std::set<std::uint32_t>& members,
                    const FarOptions& options, std::size_t* fetched) {
  FarSettings settings;
  *fetched = 0;
  SHADOWIB_TRY(settings_for(options, directory, manifest.job, manifest.set_id, manifest.number, &settings));
  if (!settings.known || (options.far.empty() && !is_in_far(directory, manifest))) return {};
  std::vector<SetMember> wanted;
  for (const SetMember& member : manifest.members) {
    std::string path;
    if (!members.empty() && !members.contains(member.index)) continue;
    if (!find_image(manifest, member, &path).ok() || !is_good_file(path, member)) wanted.push_back(member);
  }
  if (wanted.empty()) return {};
  const std::unique_ptr<FarPlace> place = settings.open();
  SHADOWIB_TRY(place->check());
  PieceProgress progress("fetching " + images_text(manifest, wanted) + " from the far place", bytes_of(wanted));
  for (const SetMember& member : wanted) {
    SHADOWIB_TRY(fetch_image(*place, directory, manifest, member, &progress));
    progress.next(member.bytes);
    progress.clear();
    std::fprintf(stderr, "shadowib: fetched %s from %s\n", member.file.c_str(), settings.spec.text().c_str());
    ++*fetched;
  }
  return {};
}

}  // namespace shadowib::cli
