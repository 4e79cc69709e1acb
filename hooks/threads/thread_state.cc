// The C++ half of save_context: what the kernel keeps for the calling thread.
#include <asm/prctl.h>
#include <errno.h>
#include <linux/keyctl.h>
#include <linux/sched/types.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/rseq.h>

#include "hooks/raw/text.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/own_rseq.h"
#include "hooks/threads/thread_context.h"

#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

// An older or other libc does not register restartable sequences.
#pragma weak __rseq_offset
#pragma weak __rseq_size

namespace shadowib {

constinit thread_local OwnRseq t_own_rseq;

void note_own_rseq(std::uint64_t area, std::uint32_t bytes, int flags, std::uint32_t signature) {
  const bool ends = (flags & RSEQ_FLAG_UNREGISTER) != 0;
  t_own_rseq = ends ? OwnRseq{} : OwnRseq{area, bytes, signature};
}

namespace {

constexpr std::uint32_t kRegisteredRseqBytes = 32;  // what glibc registers as long as the features fit

bool is_registered_by_libc(ThreadContext* c) {
  if (&__rseq_offset == nullptr || &__rseq_size == nullptr || __rseq_size == 0) return false;
  const std::uint64_t area = c->fs_base + static_cast<std::uint64_t>(__rseq_offset);
  const std::int32_t cpu_id = *reinterpret_cast<volatile std::int32_t*>(area + 4);
  if (cpu_id < 0) return false;
  c->rseq_area = area;
  c->rseq_bytes = __rseq_size > kRegisteredRseqBytes ? __rseq_size : kRegisteredRseqBytes;
  c->rseq_signature = RSEQ_SIG;
  return true;
}

// The kernel does not tell where an area lies. It answers EBUSY for the registered one and EINVAL for any other, and
// it registers one where there was none.
void record_rseq(ThreadContext* c) {
  if (is_registered_by_libc(c)) return;
  const OwnRseq own = t_own_rseq;
  if (own.area != 0) {
    const long again = raw::invoke(__NR_rseq, own.area, own.bytes, 0, own.signature);
    if (again == -EBUSY) {
      c->rseq_area = own.area;
      c->rseq_bytes = own.bytes;
      c->rseq_signature = own.signature;
      return;
    }
    if (again == 0) raw::invoke(__NR_rseq, own.area, own.bytes, RSEQ_FLAG_UNREGISTER, own.signature);
  }
  alignas(kRegisteredRseqBytes) std::uint8_t trial[kRegisteredRseqBytes] = {};
  const long result = raw::invoke(__NR_rseq, trial, sizeof(trial), 0, RSEQ_SIG);
  if (result == 0)
    raw::invoke(__NR_rseq, trial, sizeof(trial), RSEQ_FLAG_UNREGISTER, RSEQ_SIG);
  else
    c->unknown_rseq = result == -EINVAL || result == -EPERM;
}

void record_memory_policy(ThreadContext* c) {
  std::int32_t mode = 0;
  if (raw::invoke(__NR_get_mempolicy, &mode, c->memory_nodes, sizeof(c->memory_nodes) * 8, nullptr, 0) == 0)
    c->memory_policy = static_cast<std::uint32_t>(mode);
}

std::int32_t keyring(std::int32_t special) {
  const long number = raw::invoke(__NR_keyctl, KEYCTL_GET_KEYRING_ID, special, 0);
  return number > 0 ? static_cast<std::int32_t>(number) : 0;
}

// prctl(2) options that read a value of the calling thread.
void record_options(ThreadContext* c) {
  const auto value = [](long option, long argument) -> std::uint32_t {
    const long result = raw::invoke(__NR_prctl, option, argument, 0, 0, 0);
    return result > 0 ? static_cast<std::uint32_t>(result) : 0;
  };
  c->secure_bits = value(PR_GET_SECUREBITS, 0);
  c->no_new_privileges = static_cast<std::uint8_t>(value(PR_GET_NO_NEW_PRIVS, 0));
  c->machine_check_policy = static_cast<std::uint8_t>(value(PR_MCE_KILL_GET, 0));
  c->io_flusher = static_cast<std::uint8_t>(value(PR_GET_IO_FLUSHER, 0));
  for (int which = 0; which < 3; ++which) c->speculation[which] = value(PR_GET_SPECULATION_CTRL, which);
}

void record_scheduling(ThreadContext* c) {
  sched_attr attr{};
  if (raw::invoke(__NR_sched_getattr, 0, &attr, sizeof(attr), 0) == 0) {
    c->scheduler_policy = attr.sched_policy;
    c->nice = attr.sched_nice;
    c->scheduler_priority = attr.sched_priority;
    c->scheduler_flags = static_cast<std::uint32_t>(attr.sched_flags);
    c->scheduler_runtime_ns = attr.sched_runtime;
    c->scheduler_deadline_ns = attr.sched_deadline;
    c->scheduler_period_ns = attr.sched_period;
    c->utilization_limits[0] = attr.sched_util_min;
    c->utilization_limits[1] = attr.sched_util_max;
  }
  const long bytes = raw::invoke(__NR_sched_getaffinity, 0, sizeof(c->affinity), c->affinity);
  c->affinity_bytes = bytes > 0 ? static_cast<std::uint32_t>(bytes) : 0;
  const long slack = raw::invoke(__NR_prctl, PR_GET_TIMERSLACK, 0, 0, 0, 0);
  c->timer_slack_ns = slack > 0 ? static_cast<std::uint64_t>(slack) : 0;
  constexpr int kThisThread = 1;  // IOPRIO_WHO_PROCESS
  const long io_priority = raw::invoke(__NR_ioprio_get, kThisThread, 0);
  c->io_priority = io_priority > 0 ? static_cast<std::uint32_t>(io_priority) : 0;
}

// Takes each signal queued to this thread alone out of its queue, notes it, and queues it again. A signal may also be
// pending for the process; the kernel hands out the thread's own first.
void record_pending(ThreadContext* c) {
  std::uint64_t pending = 0;
  raw::invoke(__NR_rt_sigpending, &pending, 8);
  if (pending == 0) return;
  for (;;) {
    std::uint64_t own = 0;
    if (!read_status_field("/proc/thread-self/status", "SigPnd:", &own) || own == 0) break;
    if (c->pending_count == kMaxPendingPerThread) {
      c->pending_overflow = 1;
      break;
    }
    const std::uint64_t one = own & (~own + 1);
    const std::int64_t zero[2] = {0, 0};
    if (raw::invoke(__NR_rt_sigtimedwait, &one, c->pending[c->pending_count], zero, 8) <= 0) break;
    ++c->pending_count;
  }
  const long pid = raw::call(__NR_getpid);
  for (std::uint32_t i = 0; i < c->pending_count; ++i)
    raw::invoke(__NR_rt_tgsigqueueinfo, pid, c->tid, *reinterpret_cast<std::int32_t*>(c->pending[i]), c->pending[i]);
}

}  // namespace

extern "C" {
std::uint32_t shadowib_threads_in_restorer;
}

// Called by save_context. Fills everything behind the registers.
extern "C" __attribute__((visibility("hidden"))) void shadowib_record_thread(ThreadContext* c) {
  __builtin_memset(&c->magic, 0, sizeof(*c) - offsetof(ThreadContext, magic));
  c->tid = static_cast<std::int32_t>(raw::call(__NR_gettid));
  raw::invoke(__NR_rt_sigprocmask, SIG_SETMASK, nullptr, &c->signal_mask, 8);
  raw::invoke(__NR_arch_prctl, ARCH_GET_FS, &c->fs_base);
  raw::invoke(__NR_arch_prctl, ARCH_GET_GS, &c->gs_base);
  raw::invoke(__NR_get_robust_list, 0, &c->robust_list_head, &c->robust_list_bytes);
  raw::invoke(__NR_prctl, PR_GET_TID_ADDRESS, &c->clear_child_tid, 0, 0, 0);
  stack_t alternate{};
  raw::invoke(__NR_sigaltstack, nullptr, &alternate);
  c->altstack_address = reinterpret_cast<std::uint64_t>(alternate.ss_sp);
  c->altstack_bytes = alternate.ss_size;
  c->altstack_flags = alternate.ss_flags & ~SS_ONSTACK;
  raw::invoke(__NR_prctl, PR_GET_NAME, c->name, 0, 0, 0);
  record_rseq(c);
  record_scheduling(c);
  record_memory_policy(c);
  record_options(c);
  c->keyrings[0] = keyring(KEY_SPEC_THREAD_KEYRING);
  c->keyrings[1] = keyring(KEY_SPEC_PROCESS_KEYRING);
  int death_signal = 0;
  raw::invoke(__NR_prctl, PR_GET_PDEATHSIG, &death_signal, 0, 0, 0);
  c->death_signal = static_cast<std::uint16_t>(death_signal);
  record_pending(c);
  c->magic = kThreadContextMagic;
}

}  // namespace shadowib
