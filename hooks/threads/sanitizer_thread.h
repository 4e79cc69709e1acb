// The happens-before relations that ThreadSanitizer must know of a stop, in a program that it instruments. Elsewhere
// nothing here does anything.
//
// It runs a thread of its own, which begins with the program's first thread, and in every forked child, and blocks
// all signals, so that no stop would be complete with it and no user namespace be made. All it does is to give memory
// back now and then, and the run-time library can be told to end it for good.
//
// Threads are stopped in a signal handler that it does not see, so what happens before a stop and after is told to
// it.
#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>

#include "hooks/raw/tasks.h"

extern "C" void __tsan_init() __attribute__((weak));
extern "C" void __tsan_acquire(void* address) __attribute__((weak));
extern "C" void __tsan_release(void* address) __attribute__((weak));
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line) __attribute__((weak));
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line) __attribute__((weak));
extern "C" void __sanitizer_sandbox_on_notify(void* arguments) __attribute__((weak));

namespace shadowib {

// Two addresses that stand for the order of things; one would order calls of different threads, too, and hide their
// races.
inline char g_sanitizer_left, g_sanitizer_released;

// A thread leaves the shim, while it cannot be stopped yet: a stopped thread may hold locks of ThreadSanitizer.
inline void sanitizer_sees_leaving() {
  if (&__tsan_release != nullptr) __tsan_release(&g_sanitizer_left);
}
// All threads are stopped: what they have done in the shim happens before what the caller does.
inline void sanitizer_sees_stop() {
  if (&__tsan_acquire != nullptr) __tsan_acquire(&g_sanitizer_left);
}
// The caller's writes happen before the threads' acts in the shim once they are released.
inline void sanitizer_sees_end_of_stop() {
  if (&__tsan_release != nullptr) __tsan_release(&g_sanitizer_released);
}
inline void sanitizer_sees_entering() {
  if (&__tsan_acquire != nullptr) __tsan_acquire(&g_sanitizer_released);
}

// While it lives, ThreadSanitizer does not judge this thread's reads. Those of a descriptor are calls that name it.
class UnjudgedReads {
 public:
  UnjudgedReads() {
    if (&AnnotateIgnoreReadsBegin != nullptr) AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~UnjudgedReads() {
    if (&AnnotateIgnoreReadsEnd != nullptr) AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  UnjudgedReads(const UnjudgedReads&) = delete;
  UnjudgedReads& operator=(const UnjudgedReads&) = delete;
};

// Ends ThreadSanitizer's thread, and keeps it from coming back: in forked children it leaves at once. Not
// async-signal-safe.
inline void end_sanitizer_thread() {
  static std::atomic<bool> ended{false};
  if (&__tsan_init == nullptr || &__sanitizer_sandbox_on_notify == nullptr || ended.exchange(true)) return;
  pthread_t first;  // there is nothing to end before the program's first thread
  if (::pthread_create(
          &first, nullptr, [](void*) -> void* { return nullptr; }, nullptr) != 0)
    return;
  ::pthread_join(first, nullptr);
  __sanitizer_sandbox_on_notify(nullptr);
}

// In a forked child that has to be the only thread: waits a little until it has left.
inline void await_single_thread() {
  for (int patience = 2000; &__tsan_init != nullptr && patience > 0; --patience) {
    int threads = 0;
    for_each_task([](int, void* count) { return ++*static_cast<int*>(count), true; }, &threads);
    if (threads <= 1) return;
    const timespec moment{0, 1000000};
    ::nanosleep(&moment, nullptr);
  }
}

}  // namespace shadowib
