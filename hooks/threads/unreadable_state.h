// State of single threads that the kernel takes but does not tell. Guards of prctl(2) and of syscall(2) note it, so
// that a checkpoint is refused instead of losing it.
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

// The calling thread has such state from now on, or no longer has it. Makes no system call, which may be denied by
// now. Async-signal-safe.
void note_unreadable_state(UnreadableState state, bool has);

// The calling thread has put itself under a seccomp filter. Calls that it need not make may end the process.
void note_own_filter();
bool has_own_filter();

// kRefused names the first state that a thread of this process has.
Status judge_unreadable_state();

// In a forked child: only the state of the thread that forked is there.
void unreadable_state_in_child();

}  // namespace shadowib
