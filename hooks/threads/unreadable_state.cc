#include "hooks/threads/unreadable_state.h"

#include <atomic>

namespace shadowib {
namespace {

struct Note {
  const char* name;
  const char* remedy;
  bool inherited;  // by a forked child
};
constexpr Note kNotes[kUnreadableStates] = {
    {"dispatches system calls to user space (PR_SET_SYSCALL_USER_DISPATCH)", "end that before the checkpoint", false},
    {"traps reading the time stamp counter (PR_SET_TSC)", "allow it before the checkpoint", true},
    {"traps the cpuid instruction (ARCH_SET_CPUID)", "allow it before the checkpoint", true},
    {"is confined by Landlock (landlock_restrict_self)", "run the program without that sandbox", true},
    {"may access I/O ports (ioperm, iopl)", "give the permission up before the checkpoint", true},
    {"has joined another session keyring (keyctl)", "join it before the program is started", true},
};

std::atomic<std::uint32_t> g_threads[kUnreadableStates];  // that have the state
constinit thread_local bool t_has[kUnreadableStates] __attribute__((tls_model("initial-exec"))) = {};
constinit thread_local bool t_own_filter __attribute__((tls_model("initial-exec"))) = false;

}  // namespace

void note_unreadable_state(UnreadableState state, bool has) {
  const auto which = static_cast<int>(state);
  if (t_has[which] == has) return;
  t_has[which] = has;
  g_threads[which].fetch_add(has ? 1u : ~0u);
}

void note_own_filter() { t_own_filter = true; }
bool has_own_filter() { return t_own_filter; }

Status judge_unreadable_state() {
  for (int which = 0; which < kUnreadableStates; ++which)
    if (g_threads[which].load() != 0)
      return Status::of(Code::kRefused, 0, "a thread of this process %s, which cannot be captured; %s",
                        kNotes[which].name, kNotes[which].remedy);
  return {};
}

void unreadable_state_in_child() {
  for (int which = 0; which < kUnreadableStates; ++which) {
    t_has[which] = t_has[which] && kNotes[which].inherited;
    g_threads[which].store(t_has[which] ? 1 : 0);
  }
}

}  // namespace shadowib
