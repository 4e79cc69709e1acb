// Stopping the program's threads anywhere except inside the shim, a backend or a hook.
//
// Every entry point of the shim holds an `Inside` for its duration. A stop request sends a signal to each thread of
// the process; a thread outside parks in the handler, a thread inside only notes the request and parks when its
// outermost Inside ends. Parked threads wait on a futex, hold no lock of ours, and use only their own stack.
// Hazards H14, D6.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__SANITIZE_THREAD__)
#include "hooks/threads/sanitizer_thread.h"
#endif
#include "shadowib/base/lock.h"
#include "shadowib/base/status.h"

namespace shadowib {

struct ThreadDepth {
  std::uint32_t depth = 0;  // > 0: inside the shim, must not park here
};
extern constinit thread_local ThreadDepth t_depth __asm__("shadowib_thread_depth")
    __attribute__((tls_model("initial-exec"), visibility("hidden")));
// Non-zero while threads are to park. Hidden: each call of the shim looks at it.
extern std::atomic<std::uint32_t> g_stop_requested __attribute__((visibility("hidden")));

// Parks the calling thread until released, if a stop is requested and its depth is 0. Blocking loops of the shim
// (ibv_get_cq_event...) end their Inside before they sleep and start a new one after, which does the same.
void park_if_requested();

// Adds to the depth. Each looks its place up anew: compilers keep it over a call, in a register that they save first.
template <int by>
inline void change_depth() {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  void* place;
  asm volatile("movq shadowib_thread_depth@gottpoff(%%rip), %0\n\taddl %1, %%fs:(%0)"
               : "=&r"(place)
               : "i"(by)
               : "memory", "cc");
#else
  t_depth.depth += static_cast<std::uint32_t>(by);
#endif
}

// The halves of Inside, for the hot path, which keeps nothing over a call that it seldom makes. If leave() answers
// true, the caller calls park_if_requested().
inline void enter_inside() {
  change_depth<1>();
  std::atomic_signal_fence(std::memory_order_seq_cst);
#if defined(__SANITIZE_THREAD__)
  sanitizer_sees_entering();
#endif
}
[[nodiscard]] inline bool leave_inside() {
#if defined(__SANITIZE_THREAD__)
  sanitizer_sees_leaving();
#endif
  std::atomic_signal_fence(std::memory_order_seq_cst);
  change_depth<-1>();
  return __builtin_expect(is_set(g_stop_requested), 0);
}

// Marks a region where the thread must not be stopped. A few instructions; nests.
class [[nodiscard]] Inside {
 public:
  Inside() { enter_inside(); }
  ~Inside() {
    if (leave_inside()) park_if_requested();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

// Chooses the stop signal (SHADOWIB_SIGNAL, default SIGRTMAX - 2) and installs its handler. Once, at joining the job.
Status stop_install();
int stop_signal();

// Threads of ours (agent, helper) are not stopped by stop_threads; call at their start, with all signals blocked.
// Unblocks those of libc. An exempt thread that ends calls stop_unexempt_this_thread() last, because its tid may be
// given to a program thread.
void stop_exempt_this_thread();
void stop_unexempt_this_thread();

// Called by an exempt thread: parks it, for the image, until *word is no longer `value`. The thread that changes the
// word wakes the futex. Returns in the original and in a restarted process.
void park_exempt_thread_while(const std::atomic<std::uint32_t>* word, std::uint32_t value);

// How many threads of the program this stop has parked while the loader looks a symbol up for them: dlclose waits for
// each.
std::uint32_t parked_in_lookup();

// Waits until every exempt thread but the caller is parked; kTimeout names one that is not.
Status stop_wait_exempt_parked(int timeout_ms);

// In a forked child: no stop is under way, no thread is exempt, the handler stays the parent's until stop_install().
void stop_reset_after_fork();

// Signals every other non-exempt thread (new ones appearing meanwhile included) and waits until all are parked.
// kRefused after timeout_ms, naming the thread that did not park and what it is doing; all are released again then. A
// thread that no signal reaches until the kernel has done what it was asked for (state D: Soft-RoCE destroys a queue
// pair that a window is bound by, a file system is slow, a vforked child has not called exec) has kernel_timeout_ms,
// and timeout_ms once it is back. A thread that could run but has no processor has kernel_timeout_ms, too.
//
// With `ends_ns` (CLOCK_MONOTONIC) the stop ends by itself then, unless it is kept: whoever stopped the program may
// have come to wait for a lock that one of its threads holds.
Status stop_threads(int timeout_ms, int kernel_timeout_ms = 0, std::int64_t ends_ns = 0);
// The code that a handler of ours returns to, for KernelSigaction::restorer.
std::uintptr_t signal_return_address();
// From now on the stop lasts until release_threads(). False: it has ended by itself.
bool stop_keep();
// False if it has, which kStopEndedText says. An agent that was held up asks before it goes on with what needs a
// program that stands.
bool stop_lasts();
inline constexpr char kStopEndedText[] = "the program was stopped for too long and goes on";
// Lets all parked threads go on.
void release_threads();

// The parked threads, exempt ones included, for the imager; valid while stopped. `context` is what a restart jumps
// to: it returns from the save in the parking thread a second time (thread_context.h).
struct ParkedThread {
  int tid;
  void* context;  // struct ThreadContext*, on the thread's own stack
};
int parked_threads(ParkedThread* threads, int capacity);

// True once the handler is installed in this process for `signal`: the guards of sigaction and of the signal masks
// then keep the program's hands off it.
bool stop_owns_signal(int signal);

}  // namespace shadowib
