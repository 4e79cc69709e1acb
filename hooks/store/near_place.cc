#include "hooks/store/near_place.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "hooks/job/job_directory.h"
#include "hooks/job/near_directory.h"
#include "hooks/store/files.h"

namespace shadowib {
namespace fs = std::filesystem;

Status is_in_memory(const std::string& place, bool* in_memory) {
  struct statfs info {};
  if (::statfs(place.c_str(), &info) != 0)
    return Status::of(Code::kIo, errno, "cannot use %.200s for images: %.60s; name another place with --near",
                      place.c_str(), std::strerror(errno));
  *in_memory = info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC;
  return {};
}

Status check_near_place(const StoreSpec& spec, const std::string& place) {
  bool in_memory = false;
  SHADOWIB_TRY(is_in_memory(place, &in_memory));
  if (in_memory != (spec.tier == Tier::kMem))
    return Status::of(Code::kUsage, EINVAL, "--store %s: %.200s %s; name another place with --near, or use %s",
                      spec.text().c_str(), place.c_str(), in_memory ? "lies in memory" : "is no tmpfs",
                      in_memory ? "mem" : "disk");
  SHADOWIB_TRY(check_near_root(place, true));
  if (const std::string root = near_root(place); ::access(root.c_str(), W_OK | X_OK) != 0)
    return Status::of(Code::kIo, errno, "cannot write to %.200s: %.60s; name another place with --near", root.c_str(),
                      std::strerror(errno));
  return {};
}

Status list_near_sets(const std::string& place, const std::string& directory, std::vector<NearSet>* sets) {
  std::error_code error;
  const std::string root = near_root(place);
  if (!fs::exists(fs::symlink_status(root, error))) return {};
  SHADOWIB_TRY(check_near_root(place, false));
  for (fs::directory_iterator job(root, error), end; !error && job != end; job.increment(error)) {
    const std::string name = job->path().filename();
    std::error_code inner;
    if (!valid_job_name(name)) continue;
    for (fs::directory_iterator set(job->path(), inner); !inner && set != end; set.increment(inner)) {
      std::error_code unreadable;
      if (fs::read_symlink(set->path() / kNearHome, unreadable) == directory && !unreadable)
        sets->push_back({place, set->path(), name, set->path().filename()});
    }
  }
  return error ? file_error(error.value(), "read directory", root) : Status();
}

Status remove_parts(const std::string& path, bool dry_run, std::vector<std::string>* removed) {
  std::error_code error;
  for (fs::directory_iterator file(path, error), end; !error && file != end; file.increment(error)) {
    const std::string name = file->path().filename(), part = file->path();
    if (!name.starts_with(".") || name.find(kPartMark) == std::string::npos) continue;
    const int fd = ::open(part.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;  // it has its name by now
    // Held until it is gone: its writer would see that, and begin another.
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) {
      if (!dry_run && ::unlink(part.c_str()) != 0) {
        const int failed = errno;
        ::close(fd);
        return file_error(failed, "remove", part);
      }
      removed->push_back(part);
    }
    ::close(fd);
  }
  return error && error.value() != ENOENT ? file_error(error.value(), "read directory", path) : Status();
}

Status remove_near_set(const std::string& place, const std::string& job, const std::string& set_id) {
  std::error_code error;
  const std::string path = near_set_path(place, job, set_id);
  if (!fs::exists(fs::symlink_status(near_root(place), error))) return {};
  SHADOWIB_TRY(check_near_root(place, false));
  // The link that tells whose it is goes last: what a failure leaves is still found.
  for (fs::directory_iterator file(path, error), end; !error && file != end; file.increment(error)) {
    std::error_code failed;
    if (file->path().filename() == kNearHome) continue;
    if (fs::remove_all(file->path(), failed); failed) return file_error(failed.value(), "remove", file->path());
  }
  if (error && error.value() != ENOENT) return file_error(error.value(), "remove", path);
  fs::remove_all(path, error);
  if (error) return file_error(error.value(), "remove", path);
  ::rmdir((near_root(place) + "/" + job).c_str());  // the last of the job's
  return {};
}

}  // namespace shadowib
