// Locks that need no libc: usable in the shim, a backend and while program threads are stopped.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "shadowib/base/thread_annotations.h"

namespace shadowib {

// A relaxed load for a branch on the hot path: gcc folds this one into the comparison, an atomic load it does not.
// The fences keep it from being moved or made twice; on x86 it is an acquire as well.
template <typename T>
inline T peek(const std::atomic<T>& word) {
#ifdef __SANITIZE_THREAD__
  return word.load(std::memory_order_acquire);
#else
  static_assert(sizeof(T) == sizeof(word) && std::atomic<T>::is_always_lock_free);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  T value = *reinterpret_cast<const T*>(&word);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return value;
#endif
}

// Branches of the hot path that a word decides: one comparison with memory, which gcc makes of no load. Each keeps
// the order that peek() keeps.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define SHADOWIB_COMPARE(condition, operation, word, operand)                                        \
  bool result;                                                                                       \
  asm volatile(operation " %2, %1" : "=@cc" condition(result) : "m"(word), "i"(operand) : "memory"); \
  return result
inline bool is_set(const std::atomic<std::uint32_t>& word) { SHADOWIB_COMPARE("ne", "cmpl", word, 0); }
inline bool is_set(const std::atomic<bool>& word) { SHADOWIB_COMPARE("ne", "cmpb", word, 0); }
template <std::uint8_t value>
inline bool is_below(const std::atomic<std::uint8_t>& word) {
  SHADOWIB_COMPARE("b", "cmpb", word, value);
}
template <std::uint8_t value>
inline bool is_equal(const std::atomic<std::uint8_t>& word) {
  SHADOWIB_COMPARE("e", "cmpb", word, value);
}
#undef SHADOWIB_COMPARE
#else
template <typename T>
inline bool is_set(const std::atomic<T>& word) {
  return peek(word) != T{};
}
template <std::uint8_t value>
inline bool is_below(const std::atomic<std::uint8_t>& word) {
  return peek(word) < value;
}
template <std::uint8_t value>
inline bool is_equal(const std::atomic<std::uint8_t>& word) {
  return peek(word) == value;
}
#endif

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

// A short lock: spins a little, then sleeps. One atomic exchange to take, a plain store to give back. The fence that
// would make every wake-up certain costs as much as the lock itself. So a sleeper looks again after kNapNs in any
// case, and a missed wake-up delays it by no more. Not recursive.
//
// The holder may not be stopped by a checkpoint while it holds one (Inside, hooks/threads/stop.h), or else a thread
// that waits inside would never be. There is one exception: a lock that the program itself holds from one call of
// ours to a later one, its own code running in between. That one is taken outside of any Inside, so that whoever
// waits for it can be stopped as its holder can.
class SHADOWIB_CAPABILITY("lock") SpinLock {
 public:
  constexpr SpinLock() = default;
  void lock() SHADOWIB_ACQUIRE() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    if (__builtin_expect(test_and_set(), 0)) lock_slow();
  }
  bool try_lock() SHADOWIB_TRY_ACQUIRE(true) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    return word_.load(std::memory_order_relaxed) == 0 && word_.exchange(1, std::memory_order_acquire) == 0;
  }
  void unlock() SHADOWIB_RELEASE() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    word_.store(0, std::memory_order_release);
    if (__builtin_expect(is_set(sleepers_), 0)) wake_one();
  }
  // The parts of a lock for the hot path. True if it was free, and is the caller's now.
  bool lock_now() SHADOWIB_TRY_ACQUIRE(true) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    return __builtin_expect(!test_and_set(), 1);
  }
  // Looks at once whether a call's answer is not 0 and whether somebody sleeps. True if so: the answer is
  // answer_of(*answer) then, and the caller calls unlock(). Else it may call unlock_unslept(): a thread that falls
  // asleep in between looks again by itself.
  [[nodiscard]] bool add_sleepers(int* answer) const {
    bool any;
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    asm volatile("orl %2, %1" : "=@ccnz"(any), "+r"(*answer) : "m"(sleepers_) : "memory");
#else
    *answer |= static_cast<int>(sleepers_.load(std::memory_order_relaxed));
    any = *answer != 0;
#endif
    return __builtin_expect(any, 0);
  }
  static int answer_of(int answer_and_sleepers) { return static_cast<std::int16_t>(answer_and_sleepers); }
  void unlock_unslept() SHADOWIB_RELEASE() { word_.store(0, std::memory_order_release); }
  // For a forked child: whoever held it is not here.
  void reset() {
    word_.store(0, std::memory_order_relaxed);
    sleepers_.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t kNapNs = 500000;
  static constexpr std::uint32_t kSleeper = 1u << 16;  // beside what a call answers, which is an errno or -1
  __attribute__((noinline, cold)) void wake_one() { futex_wake(&word_, 1); }
  // True if it was taken already.
  bool test_and_set() {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    bool taken;
    asm volatile("lock btsl $0, %1" : "=@ccc"(taken), "+m"(word_) : : "memory");
    return taken;
#else
    return word_.exchange(1, std::memory_order_acquire) != 0;
#endif
  }
  __attribute__((noinline, cold)) void lock_slow() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    for (int spin = 0; spin < 200; ++spin) {
      if (try_lock()) return;
      cpu_pause();
    }
    sleepers_.fetch_add(kSleeper);
    while (word_.exchange(1, std::memory_order_acquire) != 0) futex_wait(&word_, 1, kNapNs);
    sleepers_.fetch_sub(kSleeper);
  }
  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};  // in units of kSleeper
};

class [[nodiscard]] SHADOWIB_SCOPED_CAPABILITY SpinGuard {
 public:
  explicit SpinGuard(SpinLock& lock) SHADOWIB_ACQUIRE(lock) : lock_(lock) { lock_.lock(); }
  ~SpinGuard() SHADOWIB_RELEASE() { lock_.unlock(); }
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
