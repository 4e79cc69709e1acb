// Events of one object that the program was told and has to acknowledge: a destroy waits for it.
#pragma once

#include <atomic>
#include <cstdint>

#include "shadowib/base/lock.h"

namespace shadowib {

// Thread-safe. An acknowledgement costs no system call while nobody waits.
class AcknowledgedEvents {
 public:
  void note_delivered() { delivered_.fetch_add(1); }
  // The last one's object may be gone when this returns, so that nothing of it is read after the count.
  void acknowledge(std::uint32_t count) {
    if (acknowledged_.fetch_add(count << 1) & kAwaited) futex_wake(&acknowledged_, 1 << 30);
  }
  // Until all that were delivered are acknowledged; outside any Inside.
  void wait_for_all() {
    std::uint32_t seen = acknowledged_.fetch_or(kAwaited) | kAwaited;
    while (seen != (delivered_.load() << 1 | kAwaited)) {
      futex_wait(&acknowledged_, seen);
      seen = acknowledged_.load();
    }
  }

 private:
  static constexpr std::uint32_t kAwaited = 1;  // the lowest bit; the count is above it
  std::atomic<std::uint32_t> delivered_{0}, acknowledged_{0};
};

}  // namespace shadowib
