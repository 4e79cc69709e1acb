// A bell: a file "@" in a directory. Its first word is a futex.
//
// One process wakes all others of this machine that wait for that directory. Each ringing wakes each sleeper once.
// inotify would wake each sleeper for each new name, and a user has few instances of it: 128 are usual.
#pragma once

#include <cstdint>
#include <string>

#include "shadowib/exchange/raw_files.h"

namespace shadowib {

// Wakes those who sleep by the bell of `directory`, relative to `root`. Nothing if it has none yet.
void ring_bell(int root, const std::string& directory);

// One who listens. Used by one thread at a time.
class Bell {
 public:
  Bell() = default;
  ~Bell() { drop(); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  // From now on this one is listened to, which is made if it is not there. False: it cannot be had.
  bool attend(int root, const std::string& directory);
  // True if this one is listened to already.
  bool attends(const std::string& directory) const { return at_ != nullptr && directory_ == directory; }
  // Another number after each ringing.
  std::uint32_t rung() const;
  // Sleeps until it has been rung since rung() returned `before`, or timeout_ns ran out. Early returns are allowed.
  void sleep(std::uint32_t before, std::int64_t timeout_ns) const;

  const std::string& directory() const { return directory_; }

 private:
  void drop();

  std::string directory_;
  OwnedFd file_;
  void* at_ = nullptr;  // only the kernel touches it: a disk that fails must not end the program
};

}  // namespace shadowib
