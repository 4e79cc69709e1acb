// Locks that need no libc: usable in the shim, a backend and while program threads are stopped.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace shadowib {

inline void cpu_pause() { __builtin_ia32_pause(); }

// Futex calls on a private word. futex_wait returns when the word differs from `expected`, on a wake, a signal
// or after timeout_ns (< 0: no limit): always re-check.
inline void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t timeout_ns = -1) {
  timespec ts{timeout_ns / 1000000000, timeout_ns % 1000000000};
  ::syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout_ns < 0 ? nullptr : &ts, nullptr, 0);
}
inline void futex_wake(std::atomic<std::uint32_t>* word, int count) {
  ::syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// A short lock: spins a little, then sleeps. One atomic exchange when free. Not recursive.
// The holder may not be stopped by a checkpoint while it holds one (see hooks/stop.h).
class SpinLock {
 public:
  constexpr SpinLock() = default;
  void lock() {
    std::uint32_t expected = 0;
    if (__builtin_expect(!word_.compare_exchange_strong(expected, 1, std::memory_order_acquire), 0)) lock_slow();
  }
  bool try_lock() {
    std::uint32_t expected = 0;
    return word_.load(std::memory_order_relaxed) == 0 &&
           word_.compare_exchange_strong(expected, 1, std::memory_order_acquire);
  }
  void unlock() {
    if (__builtin_expect(word_.exchange(0, std::memory_order_release) == 2, 0)) futex_wake(&word_, 1);
  }
  // For a forked child: whoever held it is not here.
  void reset() { word_.store(0, std::memory_order_relaxed); }

 private:
  __attribute__((noinline)) void lock_slow() {
    for (int spin = 0; spin < 200; ++spin) {
      std::uint32_t expected = 0;
      if (word_.load(std::memory_order_relaxed) == 0 &&
          word_.compare_exchange_weak(expected, 1, std::memory_order_acquire))
        return;
      cpu_pause();
    }
    while (word_.exchange(2, std::memory_order_acquire) != 0) futex_wait(&word_, 2);
  }
  std::atomic<std::uint32_t> word_{0};
};

class [[nodiscard]] SpinGuard {
 public:
  explicit SpinGuard(SpinLock& lock) : lock_(lock) { lock_.lock(); }
  ~SpinGuard() { lock_.unlock(); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  SpinLock& lock_;
};

inline std::int64_t monotonic_ns() {
  timespec ts{};
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<std::int64_t>(ts.tv_sec) * 1000000000 + ts.tv_nsec;
}

}  // namespace shadowib
