#include "shadowib/cli/far_turns.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "hooks/job/protocol.h"
#include "shadowib/cli/far_options.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kLookUs = 100000;

std::string lease_path(const std::string& set_path) {
  std::error_code error;
  const fs::path set = fs::absolute(set_path, error).lexically_normal();
  return set.parent_path() / (".lease-" + set.filename().string());
}

std::string flush_lock(const std::string& directory, const std::string& job) {
  return far_path(directory, job) + "/flush.lock";
}

std::string fetch_lock(const std::string& directory, const std::string& job) {
  return far_path(directory, job) + "/fetch.lock";
}

// The set's directory may have been named through a link.
bool same_file(int fd, const std::string& path) {
  struct stat here {
  }, there{};
  return ::fstat(fd, &here) == 0 && ::lstat(path.c_str(), &there) == 0 && here.st_dev == there.st_dev &&
         here.st_ino == there.st_ino;
}

Status lock_error(const std::string& path) {
  return Status::of(Code::kIo, errno, "cannot lock %.250s: %.60s", path.c_str(), std::strerror(errno));
}

}  // namespace

SetLease::~SetLease() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());
  release_alive_lock(fd_);
}

Status SetLease::take(const std::string& set_path) {
  path_ = lease_path(set_path);
  for (;;) {
    fd_ = hold_alive_lock(path_);
    if (fd_ < 0 && errno == EAGAIN)
      return Status::of(Code::kBusy, EAGAIN,
                        "set %.250s is being flushed, rebuilt or removed; try again at the end of that",
                        set_path.c_str());
    if (fd_ < 0) return lock_error(path_);
    if (same_file(fd_, path_)) return {};
    release_alive_lock(fd_);  // its holder has just removed it
  }
}

FlushTurn::~FlushTurn() {
  if (fd_ >= 0) release_alive_lock(fd_);
}

Status FlushTurn::take(const std::string& directory, const std::string& job, bool wait) {
  const std::string path = flush_lock(directory, job);
  while ((fd_ = hold_alive_lock(path)) < 0) {
    if (errno != EAGAIN) return lock_error(path);
    if (!wait)
      return Status::of(Code::kBusy, EAGAIN,
                        "a flush or gc of job %.64s in a far place is under way; wait for its end (flush --wait)",
                        job.c_str());
    ::usleep(kLookUs);
  }
  return {};
}

bool FlushTurn::taken(const std::string& directory, const std::string& job) {
  return is_alive(flush_lock(directory, job));
}

FetchTurn::~FetchTurn() {
  if (fd_ >= 0) release_alive_lock(fd_);
}

Status FetchTurn::take(const std::string& directory, const std::string& job) {
  const std::string path = fetch_lock(directory, job);
  while ((fd_ = hold_alive_lock(path)) < 0) {
    if (errno != EAGAIN) return lock_error(path);
    ::usleep(kLookUs);
  }
  return {};
}

bool FetchTurn::taken(const std::string& directory, const std::string& job) {
  return is_alive(fetch_lock(directory, job));
}

}  // namespace shadowib::cli
