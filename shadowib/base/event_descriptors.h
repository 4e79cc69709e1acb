// Numbers of the descriptors behind completion channels and async events, which are epoll sets (objects/events.h).
//
// Guards of libc's functions ask. Lives in the image: the numbers are the same after a restart.
#pragma once

#include <atomic>
#include <cstdint>

namespace shadowib {

class EventDescriptors {
 public:
  void add(int fd) {
    if (covers(fd)) words_[fd / 64].fetch_or(bit(fd));
  }
  void remove(int fd) {
    if (covers(fd)) words_[fd / 64].fetch_and(~bit(fd));
  }
  bool has(int fd) const { return covers(fd) && (words_[fd / 64].load() & bit(fd)) != 0; }

 private:
  static constexpr int kMost = 1 << 16;
  static bool covers(int fd) { return fd >= 0 && fd < kMost; }
  static std::uint64_t bit(int fd) { return std::uint64_t{1} << (fd % 64); }
  std::atomic<std::uint64_t> words_[kMost / 64]{};
};
inline constinit EventDescriptors g_event_descriptors;

}  // namespace shadowib
