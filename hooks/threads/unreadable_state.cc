#include "hooks/threads/unreadable_state.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "hooks/raw/tasks.h"

namespace shadowib {
namespace {

struct Kind {
  const char* name;
  const char* remedy;
  bool inherited;  // by a forked child, and by a new thread
};
constexpr Kind kKinds[kUnreadableStates] = {
    {"dispatches system calls to user space (PR_SET_SYSCALL_USER_DISPATCH)", "end that before the checkpoint", false},
    {"traps reading the time stamp counter (PR_SET_TSC)", "allow it before the checkpoint", true},
    {"traps the cpuid instruction (ARCH_SET_CPUID)", "allow it before the checkpoint", true},
    {"is confined by Landlock (landlock_restrict_self)", "run the program without that sandbox", true},
    {"may access I/O ports (ioperm, iopl)", "give the permission up before the checkpoint", true},
    {"has joined another session keyring (keyctl)", "join it before the program is started", true},
};

// A thread that has a state since `ticks`.
struct Note {
  static constexpr int kFree = 0, kTaken = -1;
  std::atomic<int> tid{kFree};
  std::atomic<std::int64_t> ticks{0};
};
constexpr int kNotes = 16;

constinit Note g_notes[kUnreadableStates][kNotes];
std::atomic<bool> g_unknown[kUnreadableStates];  // of a thread that cannot be told, or of too many
std::atomic<bool> g_any{false};                  // something has been noted
std::atomic<int> g_process{0}, g_vforked{0};     // this process; a child that has been seen in its memory
constinit thread_local bool t_has[kUnreadableStates] __attribute__((tls_model("initial-exec"))) = {};
constinit thread_local bool t_heir[kUnreadableStates] __attribute__((tls_model("initial-exec"))) = {};  // of a fork
constinit thread_local bool t_own_filter __attribute__((tls_model("initial-exec"))) = false;
constinit thread_local int t_tid __attribute__((tls_model("initial-exec"))) = StateChange::kUnknown;

// Another system call may end the process.
bool denies_calls() { return t_own_filter || t_has[static_cast<int>(UnreadableState::kSyscallUserDispatch)]; }

std::int64_t ticks_now() {
  constexpr long kTicks = 100, kNsPerTick = 10'000'000;  // USER_HZ
  timespec now{};
  ::syscall(SYS_clock_gettime, CLOCK_BOOTTIME, &now);  // not by the vdso: the counter may be trapped
  return now.tv_sec * kTicks + now.tv_nsec / kNsPerTick;
}

// Field 22 of /proc/self/task/TID/stat; -1 if there is no such thread.
std::int64_t start_of(int tid) {
  std::uint64_t ticks = 0;
  return task_stat(tid, 22, &ticks) ? static_cast<std::int64_t>(ticks) : -1;
}

void add(int which, int tid, std::int64_t ticks) {
  g_any.store(true);
  for (Note& note : g_notes[which])
    if (int expected = Note::kFree; tid > 0 && note.tid.compare_exchange_strong(expected, Note::kTaken)) {
      note.ticks.store(ticks);
      note.tid.store(tid);
      return;
    }
  g_unknown[which].store(true);
}

void remove(int which, int tid) {
  for (Note& note : g_notes[which])
    if (int expected = tid; tid > 0 && note.tid.compare_exchange_strong(expected, Note::kFree)) return;
}

struct Younger {
  std::int64_t ticks;
  bool found;
};

bool any_thread_since(std::int64_t ticks) {
  Younger younger{ticks, false};
  const bool listed = for_each_task(
      [](int tid, void* arg) {
        auto* y = static_cast<Younger*>(arg);
        y->found = start_of(tid) >= y->ticks;
        return !y->found;
      },
      &younger);
  return younger.found || !listed;
}

// Whether the state is still there. A note whose thread has ended without an heir is forgotten.
bool is_there(int which, Note& note) {
  const int tid = note.tid.load();
  if (tid == Note::kFree) return false;
  if (tid == Note::kTaken) return true;
  const std::int64_t ticks = note.ticks.load(), start = start_of(tid);
  if (start >= 0 && start <= ticks) return true;
  if (kKinds[which].inherited && any_thread_since(ticks)) return true;
  remove(which, tid);
  return false;
}

// Whether the calling thread has the state, perhaps by the thread that made it.
bool may_have(int which, std::int64_t start) {
  bool has = t_has[which] || g_unknown[which].load();
  for (const Note& note : g_notes[which]) has = has || (note.tid.load() != Note::kFree && start >= note.ticks.load());
  return has;
}

void before_fork() {
  if (!g_any.load()) return;
  const std::int64_t start = denies_calls() ? 0 : start_of(raw_gettid());
  for (int which = 0; which < kUnreadableStates; ++which)
    t_heir[which] = kKinds[which].inherited && may_have(which, start);
}

// Only the thread that forked is there.
void in_child() {
  g_process.store(raw_getpid());
  g_vforked.store(0);
  t_tid = raw_gettid();
  if (!g_any.load()) return;
  for (int which = 0; which < kUnreadableStates; ++which) {
    for (Note& note : g_notes[which]) note.tid.store(Note::kFree);
    g_unknown[which].store(false);
    t_has[which] = t_heir[which];
    if (t_has[which]) add(which, t_tid, ticks_now());
  }
}

// A child of vfork(2) shares the memory, a child of fork(2) that libc has not made does not. Where the kernel does
// not tell, it counts as the latter.
bool shares_memory_of_parent() {
  constexpr int kMemory = 1;  // KCMP_VM
  return ::syscall(SYS_kcmp, ::syscall(SYS_getppid), raw_getpid(), kMemory, 0, 0) == 0;
}

__attribute__((constructor)) void note_process() {
  g_process.store(raw_getpid());
  ::pthread_atfork(before_fork, nullptr, in_child);
}

}  // namespace

StateChange before_state_change() {
  if (denies_calls()) return {t_tid, 0};
  if (const int process = raw_getpid(); process != g_process.load()) {
    // Known from the first time on: a sandbox denies the question.
    if (process == g_vforked.load() || shares_memory_of_parent()) {
      g_vforked.store(process);
      return {StateChange::kForeign, 0};
    }
    g_process.store(process);
  }
  t_tid = raw_gettid();
  return {t_tid, ticks_now()};
}

void note_unreadable_state(UnreadableState state, bool has, const StateChange& change) {
  const auto which = static_cast<int>(state);
  if (change.tid == StateChange::kForeign || t_has[which] == has) return;
  t_has[which] = has;
  if (has)
    add(which, change.tid, change.ticks);
  else
    remove(which, change.tid);
}

void note_own_filter(const StateChange& change) {
  if (change.tid != StateChange::kForeign) t_own_filter = true;
}
bool has_own_filter() { return t_own_filter; }

Status judge_unreadable_state() {
  if (!g_any.load()) return {};
  for (int which = 0; which < kUnreadableStates; ++which) {
    bool there = g_unknown[which].load();
    for (Note& note : g_notes[which]) there = is_there(which, note) || there;
    if (there)
      return Status::of(Code::kRefused, 0, "a thread of this process %s, which cannot be captured; %s",
                        kKinds[which].name, kKinds[which].remedy);
  }
  return {};
}

}  // namespace shadowib
