// A blocked system call goes on with its remaining time after a stop, and the program sees no EINTR of ours (P2), nor
// a short count.
//
// The kernel restarts some calls after a handler with SA_RESTART by itself; poll, epoll_wait, select, nanosleep,
// sigsuspend, timed receives and others it ends with EINTR. For those the stop handler moves the program counter back
// onto the syscall instruction. The handler needs the call's number, which is not in the signal frame, and for
// relative time-outs the rest of the time. The number comes from what the stopping thread read in
// /proc/self/task/TID/syscall just before it signalled, else from the guard that is being executed, else from the
// instruction before (mov $number, %eax; syscall).
//
// A write, send or recv(MSG_WAITALL) that a stop cuts short goes on with the rest and returns the sum. Not so what is
// scattered: writev, sendmsg, recvmsg(MSG_WAITALL) may return a short count, as after any handled signal.
// Source: signal(7), "Interruption of system calls"; kernel/signal.c, handle_signal().
#pragma once

#include <time.h>
#include <ucontext.h>

#include <cstdint>

namespace shadowib {

// The system call that a thread was blocked in, as the kernel tells.
struct BlockedSyscall {
  std::int64_t number = -1;  // -1: it was running
  std::uint64_t arguments[6] = {};
  std::uint64_t stack_pointer = 0, program_counter = 0;
};

// Reads it for thread `tid` of this process. False if the thread runs or is gone. No heap.
bool read_blocked_syscall(int tid, BlockedSyscall* call);

// The socket option that is a call's time-out.
struct SocketTimeOut {
  int fd = -1, option = 0;
};

// The time-out of the call the thread is in, declared by a guard around a call with a relative time-out.
struct TimedCall {
  std::int64_t number = -1;
  std::int64_t deadline_ns = 0;  // CLOCK_MONOTONIC, moved on by each stop, wherever in the scope it meets the thread
  timespec remaining = {};       // the call's argument after an interruption
  std::uint32_t stops = 0;       // that this thread has gone through
  SocketTimeOut socket = {};     // of a call whose time-out is that
  bool shortened = false;        // the socket's, for this call
};
extern thread_local TimedCall t_timed_call __attribute__((tls_model("initial-exec")));

// Declares, for its lifetime, that the thread enters system call `number` with a relative time-out. Nests (a
// program's signal handler may poll, too) and is undone by an unwinding cancellation. A socket's time-out is
// shortened by a stop until the scope ends, which others who use that socket meanwhile may see.
class [[nodiscard]] TimedCallScope {
 public:
  TimedCallScope(std::int64_t number, std::int64_t timeout_ns, SocketTimeOut socket = {});
  ~TimedCallScope();
  TimedCallScope(const TimedCallScope&) = delete;
  TimedCallScope& operator=(const TimedCallScope&) = delete;

 private:
  TimedCall outer_;
  std::int64_t timeout_ns_;
};

// In the stop handler: made on entry, go_on() called when the thread is released. Async-signal-safe.
class InterruptedCall {
 public:
  // `seen` may be null.
  InterruptedCall(ucontext_t* context, const BlockedSyscall* seen);
  // Arranges that the call is issued again with its remaining time, or for what is left to transfer; or, if a signal
  // of the program is waiting that would have interrupted it, that it returns EINTR as it would have.
  void go_on();

 private:
  enum class Kind { kNone, kEndedByUs, kRestartedByKernel, kCutShort };
  void transfer_rest();

  Kind kind_ = Kind::kNone;
  ucontext_t* context_;
  std::int64_t number_ = -1;
  std::int64_t left_ns_ = 0;     // of the scope the thread is in, if any; may be less than 0
  bool time_out_known_ = false;  // the call is the scope's
};

}  // namespace shadowib
