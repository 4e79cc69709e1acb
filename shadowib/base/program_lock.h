// A lock that the program holds from one call of ours to a later one, its own code running in between.
#pragma once

#include "shadowib/base/lock.h"

namespace shadowib {

// The holder may be stopped by a checkpoint in the program's code. A thread that waits must then be stopped as well:
// lock() is called outside of any Inside (hooks/stop.h), and sleeps in slices, so that a wake-up lost over a restart
// does no harm.
class ProgramLock {
 public:
  void lock() {
    while (word_.exchange(1, std::memory_order_acquire) != 0) futex_wait(&word_, 1, kNapNs);
  }
  void unlock() {
    word_.store(0, std::memory_order_release);
    futex_wake(&word_, 1);
  }

 private:
  static constexpr std::int64_t kNapNs = 10'000'000;
  std::atomic<std::uint32_t> word_{0};
};

}  // namespace shadowib
