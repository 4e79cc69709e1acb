// A lock that commands hold for a moment, one after the other: those that begin or join a shared restart, or bring
// processes to the clusters of a job.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>

#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/status.h"

namespace shadowib::cli {

class SharingLock {
 public:
  SharingLock() = default;
  ~SharingLock() { close_owned_descriptor(fd_); }
  SharingLock(const SharingLock&) = delete;
  SharingLock& operator=(const SharingLock&) = delete;

  // Waits for 60 s at most. kIo names the file. Call it once.
  Status take(const std::string& path) {
    constexpr std::int64_t kPatienceNs = 60'000'000'000;
    constexpr int kStepUs = 10000;
    const Deadline deadline = Deadline::in_ns(kPatienceNs);
    while ((fd_ = hold_alive_lock(path)) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && !deadline.has_passed())
      ::usleep(kStepUs);
    return fd_ >= 0 ? Status() : file_error(errno, "lock", path);
  }

 private:
  int fd_ = -1;
};

}  // namespace shadowib::cli
