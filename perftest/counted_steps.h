// The instructions of a function, counted by single steps: a child traces its parent, which may be a restarted
// process.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <new>

namespace shadowib::perftest {

// Raw calls: the shim's hooks are none of what is counted, and its child is no member of a job.
inline void mark_step() { ::syscall(SYS_tgkill, ::syscall(SYS_getpid), ::syscall(SYS_gettid), SIGUSR2); }
inline int stopped_by(pid_t traced) {
  int status = 0;
  if (::syscall(SYS_wait4, traced, &status, __WALL, nullptr) != traced || !WIFSTOPPED(status)) return -1;
  return WSTOPSIG(status);
}
inline bool go_on(bool step, pid_t traced, int with) {
  return ::syscall(SYS_ptrace, step ? PTRACE_SINGLESTEP : PTRACE_CONT, traced, 0, with) == 0;
}

// The instructions that `traced` runs between its two marks, or -1.
inline long steps_of(pid_t traced, std::atomic<int>* attached) {
  if (::syscall(SYS_ptrace, PTRACE_ATTACH, traced, 0, 0) != 0) return -1;
  if (stopped_by(traced) != SIGSTOP) return -1;
  *attached = 1;
  int by = 0;
  for (; by != SIGUSR2; by = stopped_by(traced))
    if (by < 0 || !go_on(false, traced, by)) return -1;
  long steps = 0;
  for (by = 0;; ++steps) {
    if (!go_on(true, traced, by == SIGTRAP ? 0 : by)) return -1;
    if ((by = stopped_by(traced)) < 0) return -1;
    if (by == SIGUSR2) break;
  }
  ::syscall(SYS_ptrace, PTRACE_DETACH, traced, 0, 0);
  return steps;
}

// How many instructions function() runs, or -1. A few of the marks' own are among them.
template <typename Function>
long count_steps(Function function) {
  struct Shared {
    std::atomic<int> attached;
    std::atomic<long> steps;
  };
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return -1;
  auto* shared = new (memory) Shared{0, -1};
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const auto counted = static_cast<pid_t>(::syscall(SYS_getpid));
  const long child = ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child < 0) return -1;
  if (child == 0) {
    shared->steps = steps_of(counted, &shared->attached);
    if (shared->attached == 0) shared->attached = -1;
    ::syscall(SYS_exit_group, 0);
  }
  while (shared->attached == 0) ::syscall(SYS_sched_yield);
  if (shared->attached > 0) {
    mark_step();
    function();
    mark_step();
  }
  ::syscall(SYS_wait4, child, nullptr, 0, nullptr);
  return shared->steps;
}

}  // namespace shadowib::perftest
