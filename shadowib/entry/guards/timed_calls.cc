// Calls with a relative time-out tell the stop handler when they end, so that a stop does not use their time up.
// Calls whose time-out the kernel itself counts down in memory (select, pselect, ppoll, sleep) need no guard, nor do
// those with an absolute deadline (sem_timedwait, pthread_cond_timedwait). Sockets with a time-out:
// socket_time_outs.cc. See hooks/threads/blocked_call.h.
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hooks/threads/blocked_call.h"
#include "shadowib/entry/guards/guard.h"
#include "shadowib/entry/guards/masks.h"

using shadowib::Next;
using shadowib::TimedCallScope;

namespace {

constexpr std::int64_t kEpollPwait2 = 441;
constexpr std::int64_t kFarFuture = std::int64_t{1} << 61;

Next<int(pollfd*, nfds_t, int)> g_poll{"poll"};
Next<int(pollfd*, nfds_t, int, std::size_t)> g_poll_chk{"__poll_chk"};
Next<int(int, epoll_event*, int, int)> g_epoll_wait{"epoll_wait"};
Next<int(int, epoll_event*, int, int, const sigset_t*)> g_epoll_pwait{"epoll_pwait"};
Next<int(int, epoll_event*, int, const timespec*, const sigset_t*)> g_epoll_pwait2{"epoll_pwait2"};
Next<int(const timespec*, timespec*)> g_nanosleep{"nanosleep"};
Next<int(clockid_t, int, const timespec*, timespec*)> g_clock_nanosleep{"clock_nanosleep"};
Next<int(const sigset_t*, siginfo_t*, const timespec*)> g_sigtimedwait{"sigtimedwait"};
Next<int(int, sembuf*, std::size_t, const timespec*)> g_semtimedop{"semtimedop"};

std::int64_t nanoseconds(const timespec& t) {
  if (t.tv_sec < 0 || t.tv_nsec < 0 || t.tv_nsec >= 1000000000) return 0;  // libc and kernel will refuse it
  if (t.tv_sec > kFarFuture / 1000000000) return kFarFuture;
  return static_cast<std::int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}
std::int64_t nanoseconds(int milliseconds) { return static_cast<std::int64_t>(milliseconds) * 1000000; }

}  // namespace

SHADOWIB_GUARD int poll(pollfd* fds, nfds_t count, int timeout) {
  if (timeout <= 0) return g_poll(fds, count, timeout);
  TimedCallScope timed(SYS_poll, nanoseconds(timeout));
  return g_poll(fds, count, timeout);
}

SHADOWIB_GUARD int __poll_chk(pollfd* fds, nfds_t count, int timeout, std::size_t bytes) {
  if (timeout <= 0) return g_poll_chk(fds, count, timeout, bytes);
  TimedCallScope timed(SYS_poll, nanoseconds(timeout));
  return g_poll_chk(fds, count, timeout, bytes);
}

SHADOWIB_GUARD int epoll_wait(int epoll, epoll_event* events, int capacity, int timeout) {
  if (timeout <= 0) return g_epoll_wait(epoll, events, capacity, timeout);
  TimedCallScope timed(SYS_epoll_wait, nanoseconds(timeout));
  return g_epoll_wait(epoll, events, capacity, timeout);
}

SHADOWIB_GUARD int epoll_pwait(int epoll, epoll_event* events, int capacity, int timeout, const sigset_t* mask) {
  sigset_t copy;
  mask = shadowib::without_our_signals(mask, &copy);
  if (timeout <= 0) return g_epoll_pwait(epoll, events, capacity, timeout, mask);
  TimedCallScope timed(SYS_epoll_pwait, nanoseconds(timeout));
  return g_epoll_pwait(epoll, events, capacity, timeout, mask);
}

SHADOWIB_GUARD int epoll_pwait2(int epoll, epoll_event* events, int capacity, const timespec* timeout,
                                const sigset_t* mask) {
  sigset_t copy;
  mask = shadowib::without_our_signals(mask, &copy);
  if (g_epoll_pwait2.get() == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  if (timeout == nullptr) return g_epoll_pwait2(epoll, events, capacity, timeout, mask);
  TimedCallScope timed(kEpollPwait2, nanoseconds(*timeout));
  return g_epoll_pwait2(epoll, events, capacity, timeout, mask);
}

SHADOWIB_GUARD int nanosleep(const timespec* duration, timespec* remaining) {
  if (duration == nullptr) return g_nanosleep(duration, remaining);
  TimedCallScope timed(SYS_clock_nanosleep, nanoseconds(*duration));  // what libc makes of it
  return g_nanosleep(duration, remaining);
}

SHADOWIB_GUARD int clock_nanosleep(clockid_t clock, int flags, const timespec* duration, timespec* remaining) {
  if (duration == nullptr || (flags & TIMER_ABSTIME)) return g_clock_nanosleep(clock, flags, duration, remaining);
  TimedCallScope timed(SYS_clock_nanosleep, nanoseconds(*duration));
  return g_clock_nanosleep(clock, flags, duration, remaining);
}

// libc's usleep and sleep call its own nanosleep past us.
SHADOWIB_GUARD int usleep(useconds_t microseconds) {
  timespec duration{static_cast<time_t>(microseconds / 1000000), static_cast<long>(microseconds % 1000000) * 1000};
  return nanosleep(&duration, nullptr);
}

SHADOWIB_GUARD int sigtimedwait(const sigset_t* set, siginfo_t* info, const timespec* timeout) {
  sigset_t copy;
  set = shadowib::without_our_signals(set, &copy);
  if (timeout == nullptr) return g_sigtimedwait(set, info, timeout);
  TimedCallScope timed(SYS_rt_sigtimedwait, nanoseconds(*timeout));
  return g_sigtimedwait(set, info, timeout);
}

SHADOWIB_GUARD int semtimedop(int set, sembuf* operations, std::size_t count, const timespec* timeout) noexcept {
  if (timeout == nullptr) return g_semtimedop(set, operations, count, timeout);
  TimedCallScope timed(SYS_semtimedop, nanoseconds(*timeout));
  return g_semtimedop(set, operations, count, timeout);
}

// syscall(2) as libc has it, but for FUTEX_WAIT with a relative time-out, which GLib and others call by it, and for
// calls that kernel_state.cc notes. All else goes on with its registers and its stack as they are, since some system
// calls return twice.
extern "C" {
__attribute__((visibility("hidden"))) long shadowib_plain_syscall(long number, ...);

__attribute__((visibility("hidden"), used)) long shadowib_timed_futex(long number, void* word, long operation,
                                                                      long value, const timespec* timeout) {
  TimedCallScope timed(SYS_futex, nanoseconds(*timeout));
  return shadowib_plain_syscall(number, word, operation, value, timeout, 0L, 0L);
}

__attribute__((visibility("hidden"), used)) long shadowib_syscall_failed(long result) {
  errno = static_cast<int>(-result);
  return -1;
}
}

static_assert(SYS_futex == 202 && SYS_rseq == 334 && SYS_prctl == 157 && SYS_arch_prctl == 158 &&
              SYS_seccomp == 317 && SYS_landlock_restrict_self == 446 && SYS_iopl == 172 && SYS_keyctl == 250 &&
              SYS_ioperm == 173);
asm(R"(
.text
.globl syscall
.type syscall, @function
syscall:
  .cfi_startproc
  cmp $202, %rdi
  jne 1f
  test $0x7f, %dl  # FUTEX_WAIT is 0; above are its flags
  jnz shadowib_plain_syscall
  test %r8, %r8
  jnz shadowib_timed_futex
  jmp shadowib_plain_syscall
1: cmp $334, %rdi
  je shadowib_noted_syscall
  cmp $446, %rdi
  je shadowib_noted_syscall
  cmp $317, %rdi
  je shadowib_noted_syscall
  cmp $250, %rdi
  je shadowib_noted_syscall
  lea -157(%rdi), %rax
  cmp $1, %rax
  jbe shadowib_noted_syscall
  lea -172(%rdi), %rax
  cmp $1, %rax
  jbe shadowib_noted_syscall
  jmp shadowib_plain_syscall
  .cfi_endproc
  .size syscall, . - syscall
.hidden shadowib_plain_syscall
.globl shadowib_plain_syscall
.type shadowib_plain_syscall, @function
shadowib_plain_syscall:
  .cfi_startproc
  mov %rdi, %rax
  mov %rsi, %rdi
  mov %rdx, %rsi
  mov %rcx, %rdx
  mov %r8, %r10
  mov %r9, %r8
  mov 8(%rsp), %r9
  syscall
  cmp $-4095, %rax
  jae 1f
  ret
1: mov %rax, %rdi
  jmp shadowib_syscall_failed
  .cfi_endproc
  .size shadowib_plain_syscall, . - shadowib_plain_syscall
)");
