// Staging and committing: a set exists whole or not at all (P3).
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/set/manifest.h"
#include "hooks/imager/set/set_files.h"
#include "hooks/job/job_directory.h"

namespace shadowib {
namespace fs = std::filesystem;
namespace {

int rename_if_absent(const std::string& from, const std::string& to) {
  if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // The file system cannot refuse atomically; rename(2) onto a set that exists fails too, as it is not empty.
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

std::uint32_t last_number(const std::string& sets, const std::string& job) {
  std::uint32_t last = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(sets, error)) {
    std::string owner;
    std::uint32_t number = 0;
    std::string name = entry.path().filename();
    if ((parse_set_name(name, &owner, &number) || parse_hidden_name(name, &owner, &number)) && owner == job)
      last = std::max(last, number);
  }
  return last;
}

// On disk, with the size its process reported. Size and bytes are those of the file once it is open: before, a client
// of NFS may know a size it had seconds ago, while the other host was writing.
Status sync_image(const std::string& image, std::uint64_t bytes) {
  const int fd = ::open(image.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return file_error(errno, "find image", image);
  struct stat info {};
  const int err = ::fstat(fd, &info) == 0 && ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (err != 0) return file_error(err, "sync", image);
  if (static_cast<std::uint64_t>(info.st_size) == bytes) return {};
  return Status::of(Code::kIo, 0, "image %.200s has %lld bytes, its process reported %llu", image.c_str(),
                    static_cast<long long>(info.st_size), static_cast<unsigned long long>(bytes));
}

}  // namespace

Status stage_set(const std::string& directory, const std::string& job, std::string* staging, std::uint32_t* number) {
  if (!valid_job_name(job))
    return Status::of(Code::kUsage, EINVAL, "'%.100s' is no job name (1 to 64 of A-Za-z0-9._-)", job.c_str());
  std::error_code error;
  const std::string sets = fs::absolute(directory, error) / "sets";
  SHADOWIB_TRY(ensure_directory(sets));
  *number = last_number(sets, job) + 1;
  *staging = sets + "/." + set_name(job, *number) + ".staging-" + random_hex(4);
  if (::mkdir(staging->c_str(), 0700) != 0) return file_error(errno, "create directory", *staging);
  return {};
}

Status commit_set(const std::string& staging, const std::string& directory, const SetManifest& manifest,
                  std::string* final_path) {
  std::error_code error;
  const std::string sets = fs::absolute(directory, error) / "sets";
  *final_path = sets + "/" + set_name(manifest.job, manifest.number);
  const std::string json = encode_manifest(manifest);
  for (const SetMember& member : manifest.members)
    SHADOWIB_TRY(sync_image(staging + "/" + member.file, member.bytes));
  SHADOWIB_TRY(write_new_file(staging + "/" + kManifestFile, json));
  SHADOWIB_TRY(write_new_file(staging + "/" + kManifestSumFile, manifest_sum(json)));
  SHADOWIB_TRY(sync_path(staging));
  if (int err = rename_if_absent(staging, *final_path); err != 0)
    return err == EEXIST || err == ENOTEMPTY
               ? Status::of(Code::kBusy, err, "set %.200s exists already", final_path->c_str())
               : file_error(err, "commit", *final_path);
  Status synced = sync_path(sets);
  // Not known to be on disk: take it back rather than leave a set that a power failure may undo.
  if (!synced.ok()) ::rename(final_path->c_str(), staging.c_str());
  return synced;
}

void discard_staging(const std::string& staging) {
  if (!staging.empty()) (void)remove_hidden(staging);
}

}  // namespace shadowib
