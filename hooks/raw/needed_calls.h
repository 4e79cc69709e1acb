// System calls by which a checkpoint stops, judges and saves a process. The command tries them, where the process was
// started under a seccomp filter: a filter may end the process at one that it does not know.
#pragma once

#include <sys/syscall.h>

namespace shadowib {

struct NeededCall {
  const char* name;
  int number;
};
inline constexpr NeededCall kNeededCalls[] = {
#define CALL(name) \
  { #name, SYS_##name }
    CALL(arch_prctl),
    CALL(brk),
    CALL(capget),
    CALL(clock_gettime),
    CALL(close),
    CALL(dup3),
    CALL(fcntl),
    CALL(fstat),
    CALL(fsync),
    CALL(ftruncate),
    CALL(futex),
    CALL(get_mempolicy),
    CALL(get_robust_list),
    CALL(getdents64),
    CALL(getgroups),
    CALL(getitimer),
    CALL(getpgid),
    CALL(getresgid),
    CALL(getresuid),
    CALL(getsid),
    CALL(getsockname),
    CALL(getsockopt),
    CALL(ioctl),
    CALL(ioprio_get),
    CALL(kcmp),
    CALL(keyctl),
    CALL(lseek),
    CALL(membarrier),
    CALL(mincore),
    CALL(mlockall),
    CALL(mmap),
    CALL(modify_ldt),
    CALL(mprotect),
    CALL(mremap),
    CALL(msync),
    CALL(munlock),
    CALL(munmap),
    CALL(newfstatat),
    CALL(openat),
    CALL(personality),
    CALL(pidfd_open),
    CALL(pidfd_send_signal),
    CALL(prctl),
    CALL(pread64),
    CALL(prlimit64),
    CALL(pwrite64),
    CALL(read),
    CALL(readlinkat),
    CALL(renameat2),
    CALL(rseq),
    CALL(rt_sigaction),
    CALL(rt_sigpending),
    CALL(rt_sigprocmask),
    CALL(rt_sigqueueinfo),
    CALL(rt_sigtimedwait),
    CALL(rt_tgsigqueueinfo),
    CALL(sched_getaffinity),
    CALL(sched_getattr),
    CALL(sched_yield),
    CALL(setfsgid),
    CALL(setfsuid),
    CALL(sigaltstack),
    CALL(socket),
    CALL(statx),
    CALL(sync_file_range),
    CALL(sysinfo),
    CALL(tgkill),
    CALL(timer_gettime),
    CALL(umask),
    CALL(uname),
    CALL(unlinkat),
    CALL(write),
#undef CALL
};
// Calls that are only made where there is no filter: to write quickly or less, by a saver, to choose a store.
inline constexpr const char* kUnfilteredCalls[] = {"chdir",
                                                   "clone",
                                                   "close_range",
                                                   "exit",
                                                   "exit_group",
                                                   "fallocate",
                                                   "fstatfs",
                                                   "getppid",
                                                   "io_destroy",
                                                   "io_getevents",
                                                   "io_setup",
                                                   "io_submit",
                                                   "linkat",
                                                   "madvise",
                                                   "ppoll",
                                                   "sched_setaffinity",
                                                   "sched_setscheduler",
                                                   "setpgid",
                                                   "setpriority",
                                                   "statfs",
                                                   "wait4"};
inline constexpr char kProbeOption[] = "--probe-calls";  // of the command
inline constexpr char kProbeDone[] = "done";

}  // namespace shadowib
