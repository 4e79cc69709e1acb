// State of single threads that the kernel takes but does not tell. Guards of prctl(2) and of syscall(2) note it, so
// that a checkpoint is refused instead of losing it.
//
// The state ends with its thread. Threads that this one has made since have it, too, and no guard sees that. So the
// note stays while the thread lives, or any thread that is younger than the note.
#pragma once

#include <cstdint>

#include "shadowib/base/status.h"

namespace shadowib {

enum class UnreadableState : std::uint8_t {
  kSyscallUserDispatch,  // prctl(PR_SET_SYSCALL_USER_DISPATCH)
  kTimestampTrap,        // prctl(PR_SET_TSC)
  kCpuidTrap,            // arch_prctl(ARCH_SET_CPUID)
  kLandlock,             // landlock_restrict_self(2)
  kPortAccess,           // ioperm(2), iopl(2)
  kSessionKeyring,       // keyctl(KEYCTL_JOIN_SESSION_KEYRING)
};
inline constexpr int kUnreadableStates = 6;

// The calling thread, about to make a call that gives it such state. Made before the call: afterwards even getpid(2)
// may be denied. Async-signal-safe.
struct StateChange {
  static constexpr int kUnknown = 0, kForeign = -1;
  int tid = kUnknown;      // kForeign: of a child of vfork(2), which shares this process's memory alone
  std::int64_t ticks = 0;  // of CLOCK_BOOTTIME, as /proc/PID/stat counts
};
StateChange before_state_change();

// The thread has such state from now on, or no longer has it. Makes no system call. Async-signal-safe.
void note_unreadable_state(UnreadableState state, bool has, const StateChange& change);

// The thread has put itself under a seccomp filter. Calls that it need not make may end the process.
void note_own_filter(const StateChange& change);
bool has_own_filter();

// kRefused names the first state that a thread of this process has, or may have got from one that has ended. Any
// thread. No heap.
Status judge_unreadable_state();

}  // namespace shadowib
