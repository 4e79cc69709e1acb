// Guards of calls that give a thread state which the kernel does not tell, or that an image must hold
// (hooks/threads/unreadable_state.h, own_rseq.h). What they do stays libc's.
#include <asm/prctl.h>
#include <errno.h>
#include <linux/keyctl.h>
#include <linux/seccomp.h>
#include <sys/io.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstdarg>

#include "hooks/threads/own_rseq.h"
#include "hooks/threads/unreadable_state.h"
#include "shadowib/entry/guards/guard.h"

using shadowib::Next;
using shadowib::StateChange;
using shadowib::UnreadableState;

namespace {

Next<int(int, unsigned long, unsigned long, unsigned long, unsigned long)> g_prctl{"prctl"};
Next<int(int, unsigned long)> g_arch_prctl{"arch_prctl"};
Next<int(unsigned long, unsigned long, int)> g_ioperm{"ioperm"};
Next<int(int)> g_iopl{"iopl"};

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

bool option_matters(long option) {
  return option == PR_SET_SYSCALL_USER_DISPATCH || option == PR_SET_TSC || option == PR_SET_SECCOMP;
}

// After a call that succeeded.
void note_option(long option, unsigned long value, const StateChange& change) {
  switch (option) {
    case PR_SET_SYSCALL_USER_DISPATCH:
      return note_unreadable_state(UnreadableState::kSyscallUserDispatch, value != 0, change);
    case PR_SET_TSC:
      return note_unreadable_state(UnreadableState::kTimestampTrap, value == PR_TSC_SIGSEGV, change);
    case PR_SET_SECCOMP:
      return note_own_filter(change);
    default:
      return;
  }
}

void note_arch_option(long option, unsigned long value, const StateChange& change) {
  if (option == ARCH_SET_CPUID) note_unreadable_state(UnreadableState::kCpuidTrap, value == 0, change);
}

// Whether a call by syscall(2) may change what is noted here. Those of rseq(2) are noted elsewhere.
bool call_matters(long number, long a) {
  switch (number) {
    case SYS_prctl:
      return option_matters(a);
    case SYS_arch_prctl:
      return a == ARCH_SET_CPUID;
    case SYS_keyctl:
      return a == KEYCTL_JOIN_SESSION_KEYRING;
    default:
      return number != SYS_rseq;
  }
}

void note_call(long number, long a, long b, long c, long d, const StateChange& change) {
  switch (number) {
    case SYS_rseq:
      return shadowib::note_own_rseq(static_cast<std::uint64_t>(a), static_cast<std::uint32_t>(b),
                                     static_cast<int>(c), static_cast<std::uint32_t>(d));
    case SYS_prctl:
      return note_option(a, static_cast<unsigned long>(b), change);
    case SYS_arch_prctl:
      return note_arch_option(a, static_cast<unsigned long>(b), change);
    case SYS_seccomp:
      if (a != SECCOMP_GET_ACTION_AVAIL && a != SECCOMP_GET_NOTIF_SIZES) note_own_filter(change);
      return;
    case SYS_keyctl:
      if (a == KEYCTL_JOIN_SESSION_KEYRING) note_unreadable_state(UnreadableState::kSessionKeyring, true, change);
      return;
    case SYS_landlock_restrict_self:
      return note_unreadable_state(UnreadableState::kLandlock, true, change);
    case SYS_iopl:
      return note_unreadable_state(UnreadableState::kPortAccess, a != 0, change);
    case SYS_ioperm:
      if (c != 0) note_unreadable_state(UnreadableState::kPortAccess, true, change);
      return;
    default:
      return;
  }
}

StateChange change_if(bool matters) { return matters ? shadowib::before_state_change() : StateChange(); }

}  // namespace

extern "C" {
__attribute__((visibility("hidden"))) long shadowib_plain_syscall(long number, ...);

// Reached by syscall() (timed_calls.cc).
__attribute__((visibility("hidden"), used)) long shadowib_noted_syscall(long number, long a, long b, long c, long d,
                                                                        long e, long f) {
  const StateChange change = change_if(call_matters(number, a));
  const long result = shadowib_plain_syscall(number, a, b, c, d, e, f);
  if (result >= 0) note_call(number, a, b, c, d, change);
  return result;
}
}

SHADOWIB_GUARD int prctl(int option, ...) noexcept {
  va_list list;
  va_start(list, option);
  unsigned long value[4];
  for (unsigned long& v : value) v = va_arg(list, unsigned long);
  va_end(list);
  const StateChange change = change_if(option_matters(option));
  const int result = g_prctl(option, value[0], value[1], value[2], value[3]);
  if (result >= 0) note_option(option, value[0], change);
  return result;
}

SHADOWIB_GUARD int arch_prctl(int option, unsigned long value) noexcept {
  const StateChange change = change_if(option == ARCH_SET_CPUID);
  const int result = g_arch_prctl(option, value);
  if (result >= 0) note_arch_option(option, value, change);
  return result;
}

SHADOWIB_GUARD int ioperm(unsigned long from, unsigned long count, int on) noexcept {
  const StateChange change = change_if(on != 0);
  const int result = g_ioperm(from, count, on);
  if (result == 0 && on != 0) note_unreadable_state(UnreadableState::kPortAccess, true, change);
  return result;
}

SHADOWIB_GUARD int iopl(int level) noexcept {
  const StateChange change = change_if(true);
  const int result = g_iopl(level);
  if (result == 0) note_unreadable_state(UnreadableState::kPortAccess, level != 0, change);
  return result;
}
