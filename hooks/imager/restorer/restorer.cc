// The restorer: a flat, position-independent piece of code that runs alone in the address space of the process to be.
//
// No libc, no relocations, no static data. It replaces everything but its own region by the image's memory, makes the
// threads, and lets each jump into its ThreadContext. It is entered once per process with all signals blocked.
// Other files have the memory, its content and the credentials. This file has threads, the process and the order.
#include <asm/prctl.h>
#include <asm/signal.h>
#include <linux/futex.h>
#include <linux/prctl.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <linux/time.h>

#include "hooks/imager/restorer/steps.h"
#include "hooks/threads/thread_context.h"

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#endif
#ifndef PR_TIMER_CREATE_RESTORE_IDS
#define PR_TIMER_CREATE_RESTORE_IDS 77
#endif

using namespace shadowib;
using namespace shadowib::restorer;

// The compiler may call these.
extern "C" void* memcpy(void* to, const void* from, unsigned long bytes) {
  void* result = to;
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
  return result;
}
extern "C" void* memset(void* to, int value, unsigned long bytes) {
  void* result = to;
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
  return result;
}

namespace {

constexpr std::uint64_t kAllSignals = ~0ull;

// --- the state of one thread ---

// Asked once, so that a thread need not set what it has.
void note_inherited(RestorerInherited* i) {
  for (int which = 0; which < 3; ++which)
    i->speculation[which] =
        static_cast<std::uint32_t>(raw::invoke(__NR_prctl, PR_GET_SPECULATION_CTRL, which, 0, 0, 0));
  const long bytes = raw::invoke(__NR_sched_getaffinity, 0, sizeof(i->affinity), i->affinity);
  i->affinity_bytes = raw::failed(bytes) ? 0 : static_cast<std::uint32_t>(bytes);
  const long slack = raw::invoke(__NR_prctl, PR_GET_TIMERSLACK, 0, 0, 0, 0);
  i->timer_slack_ns = raw::failed(slack) ? 0 : static_cast<std::uint64_t>(slack);
}

bool same_affinity(const RestorerInherited& i, const ThreadContext& c) {
  if (i.affinity_bytes != c.affinity_bytes) return false;
  for (std::uint32_t byte = 0; byte < c.affinity_bytes; ++byte)
    if (i.affinity[byte] != c.affinity[byte]) return false;
  return true;
}

void restore_scheduling(RestorerArgs* args, const ThreadContext& c) {
  const RestorerInherited& inherited = args->inherited;
  if (c.affinity_bytes != 0 && !same_affinity(inherited, c))
    raw::invoke(__NR_sched_setaffinity, 0, c.affinity_bytes, c.affinity);
  if (c.timer_slack_ns != 0 && c.timer_slack_ns != inherited.timer_slack_ns)
    raw::invoke(__NR_prctl, PR_SET_TIMERSLACK, c.timer_slack_ns, 0, 0, 0);
  constexpr std::uint64_t kResetOnFork = 1, kDeadlineFlags = 1 | 2 | 4, kUtilizationFlags = 0x60;
  constexpr int kDeadline = 6;
  const bool newer = c.magic == kThreadContextMagic;
  // A kernel without utilization limits tells 0 and 0, one with them 0 and 1,024.
  const bool limited = newer && (c.utilization_limits[0] != 0 || c.utilization_limits[1] % 1024 != 0);
  if (c.scheduler_policy == 0 && c.nice == 0 && (c.scheduler_flags & kResetOnFork) == 0 && !limited) return;
  sched_attr attr{};
  attr.size = limited ? 56 : 48;
  attr.sched_policy = c.scheduler_policy;
  attr.sched_nice = c.nice;
  attr.sched_priority = c.scheduler_priority;
  attr.sched_flags = c.scheduler_flags & kResetOnFork;
  if (newer && c.scheduler_policy == kDeadline) {
    attr.sched_flags = c.scheduler_flags & kDeadlineFlags;
    attr.sched_runtime = c.scheduler_runtime_ns;
    attr.sched_deadline = c.scheduler_deadline_ns;
    attr.sched_period = c.scheduler_period_ns;
  }
  if (limited) {
    attr.sched_flags |= kUtilizationFlags;
    attr.sched_util_min = c.utilization_limits[0];
    attr.sched_util_max = c.utilization_limits[1];
  }
  long result = raw::invoke(__NR_sched_setattr, 0, &attr, 0);
  if (limited && raw::failed(result)) {  // a kernel may have no utilization limits, which are hints
    attr.size = 48;
    attr.sched_flags &= ~kUtilizationFlags;
    result = raw::invoke(__NR_sched_setattr, 0, &attr, 0);
  }
  // A better priority than this user may have is not worth a refusal; any other failure is.
  if (raw::failed(result) && result != -1 /* EPERM */) fail(args, RestoreStep::kSchedule, result, c.tid);
}

// Hints and protections that another kernel or machine may not have: what it refuses stays as it is.
void restore_options(RestorerArgs* args, const ThreadContext& c) {
  constexpr int kThisThread = 1;          // IOPRIO_WHO_PROCESS
  constexpr std::uint32_t kCanBeSet = 1;  // PR_SPEC_PRCTL
  if (c.io_priority >> 13 != 0) raw::invoke(__NR_ioprio_set, kThisThread, 0, c.io_priority);
  if (c.memory_policy != 0)
    raw::invoke(__NR_set_mempolicy, c.memory_policy, c.memory_nodes, sizeof(c.memory_nodes) * 8);
  if (c.machine_check_policy != PR_MCE_KILL_DEFAULT)
    raw::invoke(__NR_prctl, PR_MCE_KILL, PR_MCE_KILL_SET, c.machine_check_policy, 0, 0);
  if (c.io_flusher != 0) raw::invoke(__NR_prctl, PR_SET_IO_FLUSHER, 1, 0, 0, 0);
  for (int which = 0; which < 3; ++which) {
    const std::uint32_t value = c.speculation[which];
    if ((value & kCanBeSet) != 0 && value != args->inherited.speculation[which])
      raw::invoke(__NR_prctl, PR_SET_SPECULATION_CTRL, which, value & ~kCanBeSet, 0, 0);
  }
}

// A process that no member has made has the supervisor's, which ends it with the restart command. (A change of user
// takes it away, but they are in a namespace of processes that ends with it.)
void restore_death_signal(const ThreadContext& c) {
  int now = 0;
  if (c.death_signal == 0) return;
  raw::invoke(__NR_prctl, PR_GET_PDEATHSIG, &now, 0, 0, 0);
  if (now == 0) raw::invoke(__NR_prctl, PR_SET_PDEATHSIG, c.death_signal, 0, 0, 0);
}

void restore_thread_state(RestorerArgs* args, const ThreadContext& c) {
  const bool newer = c.magic == kThreadContextMagic;
  if (!newer && c.magic != kFirstThreadContextMagic)
    fail(args, RestoreStep::kContext, 0, reinterpret_cast<std::uint64_t>(&c));
  raw::invoke(__NR_set_tid_address, c.clear_child_tid);
  if (c.robust_list_head != 0)
    check(args, RestoreStep::kRobustList, raw::invoke(__NR_set_robust_list, c.robust_list_head, c.robust_list_bytes),
          c.robust_list_head);
  if (c.altstack_bytes != 0) {
    stack_t alternate{};
    alternate.ss_sp = reinterpret_cast<void*>(c.altstack_address);
    alternate.ss_size = c.altstack_bytes;
    alternate.ss_flags = c.altstack_flags;
    check(args, RestoreStep::kAlternateStack, raw::invoke(__NR_sigaltstack, &alternate, nullptr), c.altstack_address);
  }
  raw::invoke(__NR_prctl, PR_SET_NAME, c.name, 0, 0, 0);
  restore_scheduling(args, c);
  if (c.gs_base != 0) raw::invoke(__NR_arch_prctl, ARCH_SET_GS, c.gs_base);
  for (std::uint32_t i = 0; i < c.pending_count; ++i)
    check(args, RestoreStep::kPending,
          raw::invoke(__NR_rt_tgsigqueueinfo, args->process->pid, c.tid,
                      *reinterpret_cast<const std::int32_t*>(c.pending[i]), c.pending[i]),
          c.tid);
  if (args->has_credentials == 0) restore_credentials(args);
  restore_death_signal(c);  // which a change of user takes away
  if (newer) restore_options(args, c);
  if ((newer ? c.no_new_privileges : args->process->no_new_privileges) != 0)
    raw::invoke(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  // Last: from here on the kernel writes into the restored memory.
  if (c.rseq_area != 0)
    check(args, RestoreStep::kRseq, raw::invoke(__NR_rseq, c.rseq_area, c.rseq_bytes, 0, c.rseq_signature),
          c.rseq_area);
}

// --- threads ---

void wait_for(std::uint32_t* word, std::uint32_t value) {
  for (;;) {
    const std::uint32_t now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (now == value) return;
    raw::invoke(__NR_futex, word, FUTEX_WAIT, now, nullptr, nullptr, 0);
  }
}

[[noreturn]] void enter_context(const ThreadContext* c) {
  __asm__ volatile("jmpq *%[entry]" : : [entry] "r"(c->resume_entry), "D"(c) : "memory");
  __builtin_unreachable();
}

struct ThreadStart {
  RestorerArgs* args;
  const RestorerThread* thread;
};

extern "C" [[noreturn]] void restorer_thread(RestorerArgs* args, const RestorerThread* thread) {
  const auto* c = reinterpret_cast<const ThreadContext*>(thread->context);
  restore_thread_state(args, *c);
  if (__atomic_add_fetch(&args->threads_ready, 1, __ATOMIC_ACQ_REL) == args->thread_count - 1)
    raw::invoke(__NR_futex, &args->threads_ready, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  wait_for(&args->released, 1);
  enter_context(c);
}

long clone_thread(clone_args* how, RestorerArgs* args, const RestorerThread* thread) {
  register RestorerArgs* a __asm__("r12") = args;
  register const RestorerThread* t __asm__("r13") = thread;
  long result;
  __asm__ volatile(
      "syscall\n\t"
      "testq %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xorl %%ebp, %%ebp\n\t"
      "movq %%r12, %%rdi\n\t"
      "movq %%r13, %%rsi\n\t"
      "callq restorer_thread\n\t"
      "ud2\n\t"
      "1:\n\t"
      : "=a"(result)
      : "a"(__NR_clone3), "D"(how), "S"(sizeof(*how)), "r"(a), "r"(t)
      : "rcx", "r11", "memory");
  return result;
}

// The supervisor sees to it that the next thread made in this pid namespace has that number: this one may not choose
// any more.
void ask_for_number(RestorerArgs* args, std::int32_t tid) {
  RestoreReport& request = args->report;
  request.step = RestoreStep::kNumber;
  request.object = static_cast<std::uint64_t>(tid);
  raw::invoke(__NR_write, args->status_fd, &request, sizeof(request));
  char given = 0;
  long n;
  do n = raw::invoke(__NR_read, args->go_fd, &given, 1);
  while (n == -4);
  if (n != 1) raw::call(__NR_exit_group, 127);  // the supervisor gave up
}

void make_threads(RestorerArgs* args) {
  for (std::uint32_t i = 1; i < args->thread_count; ++i) {
    const RestorerThread& t = args->threads[i];
    const auto* c = reinterpret_cast<const ThreadContext*>(t.context);
    std::int32_t tid = t.tid;
    clone_args how{};
    how.flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    how.stack = t.stack;
    how.stack_size = kRestorerThreadStack;
    how.tls = c->fs_base;
    if (args->asks_for_numbers != 0) {
      ask_for_number(args, tid);
    } else {
      how.set_tid = reinterpret_cast<std::uint64_t>(&tid);
      how.set_tid_size = 1;
    }
    const long made = clone_thread(&how, args, &t);
    check(args, RestoreStep::kThread, made, static_cast<std::uint64_t>(t.tid));
    if (made != t.tid) fail(args, RestoreStep::kThread, -17 /* EEXIST */, static_cast<std::uint64_t>(t.tid));
  }
}

// --- the process ---

struct SigEvent {  // sigevent of the kernel
  std::uint64_t value;
  std::int32_t signal, notify, thread;
  std::int32_t unused[11];
};
static_assert(sizeof(SigEvent) == 64);

void make_timer(RestorerArgs* args, const TimerRecord& t) {
  SigEvent event{};
  event.value = t.value;
  event.signal = t.signal;
  event.notify = t.notify;
  event.thread = t.thread;
  std::int32_t id = t.id;
  const bool restores_ids = raw::invoke(__NR_prctl, PR_TIMER_CREATE_RESTORE_IDS, 1, 0, 0, 0) == 0;
  long result = raw::invoke(__NR_timer_create, t.clock, &event, &id);
  // Older kernels count up from zero: make and delete until the number comes.
  while (!restores_ids && result == 0 && id < t.id) {
    raw::invoke(__NR_timer_delete, id);
    result = raw::invoke(__NR_timer_create, t.clock, &event, &id);
  }
  if (restores_ids) raw::invoke(__NR_prctl, PR_TIMER_CREATE_RESTORE_IDS, 0, 0, 0, 0);
  if (result == 0 && id != t.id) result = -17;
  check(args, RestoreStep::kTimer, result, t.id);
  const std::int64_t when[4] = {t.interval_s, t.interval_ns, t.remaining_s, t.remaining_ns};
  check(args, RestoreStep::kTimer, raw::invoke(__NR_timer_settime, t.id, 0, when, nullptr), t.id);
}

// Of state that is large and so is granted on demand (AMX). Before there are other threads. Every other component is
// there from the start or not at all, and fit_to_processor judges which of them the image needs.
void restore_state_permission(RestorerArgs* args) {
  constexpr std::uint32_t kTileData = 18;
  std::uint64_t now = 0;
  if (raw::failed(raw::invoke(__NR_arch_prctl, ARCH_GET_XCOMP_PERM, &now))) return;
  if ((args->process->state_permission & ~now & 1ull << kTileData) != 0)
    check(args, RestoreStep::kStatePermission, raw::invoke(__NR_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData),
          kTileData);
}

// In an older kernel less is disabled than wished, or more: pages of a size that is advised are of use, not of need.
void restore_memory_state(const ProcessRecord& p) {
  const std::uint32_t huge_pages = p.thp_disabled;  // 1, and flags since Linux 6.18
  if (huge_pages != 0 && raw::failed(raw::invoke(__NR_prctl, PR_SET_THP_DISABLE, 1, huge_pages & ~1u, 0, 0)))
    raw::invoke(__NR_prctl, PR_SET_THP_DISABLE, 1, 0, 0, 0);
  for (std::uint32_t bit = 1; bit != 0; bit <<= 1)
    if ((p.memory_barriers & bit) != 0)
      raw::invoke(__NR_membarrier, bit, 0, 0);  // a kernel without it refuses the program's barriers as well
  if (p.merges_memory != 0) raw::invoke(__NR_prctl, PR_SET_MEMORY_MERGE, 1, 0, 0, 0);
  if (p.denied_execution != 0) raw::invoke(__NR_prctl, PR_SET_MDWE, p.denied_execution, 0, 0, 0);
}

// Linux arms a periodic ITIMER_REAL again when its signal is taken. While SIGALRM is pending, the timer has an
// interval and no value.
void restore_interval_timer(RestorerArgs* args, int which) {
  std::int64_t timer[4];  // interval and value, in seconds and microseconds
  memcpy(timer, args->process->interval_timers[which], sizeof(timer));
  if (which == 0 /* ITIMER_REAL */ && (timer[2] | timer[3]) == 0) {
    timer[2] = timer[0];
    timer[3] = timer[1];
  }
  if ((timer[2] | timer[3]) != 0)
    check(args, RestoreStep::kTimer, raw::invoke(__NR_setitimer, which, timer, nullptr), which);
}

// What belongs to the process and starts to run, or to be in the way, when it is set.
void restore_process_state(RestorerArgs* args) {
  const ProcessRecord& p = *args->process;
  for (std::uint32_t i = 0; i < args->timer_count; ++i) make_timer(args, args->timers[i]);
  for (int which = 0; which < 3; ++which) restore_interval_timer(args, which);
  for (std::uint32_t i = 0; i < args->pending_count; ++i)
    check(args, RestoreStep::kPending,
          raw::invoke(__NR_rt_sigqueueinfo, p.pid, *reinterpret_cast<const std::int32_t*>(args->pending[i]),
                      args->pending[i]),
          0);
  if (args->asks_for_numbers == 0) restore_limits(p);
  if (p.child_subreaper != 0) raw::invoke(__NR_prctl, PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  restore_memory_state(p);
}

void fill_mailbox(RestorerArgs* args) {
  const ProcessRecord& p = *args->process;
  memcpy(reinterpret_cast<void*>(p.mailbox_address), args->mailbox_job, args->mailbox_job_bytes);
  auto* region = reinterpret_cast<std::uint64_t*>(p.mailbox_address + args->mailbox_restorer_offset);
  region[0] = args->region_start;
  region[1] = args->region_bytes;
  *reinterpret_cast<std::uint32_t*>(p.threads_in_restorer_address) = args->thread_count;
}

// Tells the supervisor that this process stands, and waits for the others.
void wait_for_go(RestorerArgs* args) {
  args->report.step = RestoreStep::kDone;
  raw::invoke(__NR_write, args->status_fd, &args->report, sizeof(args->report));
  char go = 0;
  long n;
  do n = raw::invoke(__NR_read, args->go_fd, &go, 1);
  while (n == -4);
  if (n != 1) raw::call(__NR_exit_group, 127);  // the supervisor gave up
  raw::invoke(__NR_close, args->status_fd);
  raw::invoke(__NR_close, args->go_fd);
}

}  // namespace

extern "C" __attribute__((section(".text.entry"))) [[noreturn]] void restorer_main(RestorerArgs* args) {
  raw::invoke(__NR_rt_sigprocmask, 2 /* SIG_SETMASK */, &kAllSignals, nullptr, 8);
  restore_memory(args);
  for (std::uint32_t i = 0; i < args->file_count; ++i) {
    raw::invoke(__NR_close, args->files[i].fd);
    if (args->files[i].direct_fd >= 0) raw::invoke(__NR_close, args->files[i].direct_fd);
  }
  if (args->stream_fd >= 0) raw::invoke(__NR_close, args->stream_fd);
  if (args->exe_fd >= 0) raw::invoke(__NR_close, args->exe_fd);
  fill_mailbox(args);
  take_credentials(args);
  note_inherited(&args->inherited);
  restore_state_permission(args);
  make_threads(args);
  const auto* c = reinterpret_cast<const ThreadContext*>(args->threads[0].context);
  check(args, RestoreStep::kThread, raw::invoke(__NR_arch_prctl, ARCH_SET_FS, c->fs_base), c->fs_base);
  restore_process_state(args);
  restore_thread_state(args, *c);
  // Dropping credentials made the process undumpable; that is per process and comes when all threads have done so.
  wait_for(&args->threads_ready, args->thread_count - 1);
  if (args->process->dumpable <= 1) raw::invoke(__NR_prctl, PR_SET_DUMPABLE, args->process->dumpable, 0, 0, 0);
  wait_for_go(args);
  __atomic_store_n(&args->released, 1, __ATOMIC_RELEASE);
  raw::invoke(__NR_futex, &args->released, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
  enter_context(c);
}
