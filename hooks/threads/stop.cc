#include "hooks/threads/stop.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hooks/raw/raw_signal.h"
#include "hooks/raw/tasks.h"
#include "hooks/raw/text.h"
#include "hooks/raw/vdso_range.h"
#include "hooks/threads/blocked_call.h"
#include "hooks/threads/park.h"
#include "hooks/threads/sanitizer_thread.h"
#include "hooks/threads/stop_guards.h"
#include "shadowib/base/arena.h"
#include "shadowib/base/guard.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr std::int64_t kRescanNs = 1000000;      // a thread may end, or be made, without telling us
constexpr std::int64_t kStateCheckNs = 5000000;  // then a silent thread may be a dead leader
constexpr std::int64_t kStarvedNs = 200000000;   // a thread with a processor runs for a part of this time

std::atomic<int> g_signal{0};
std::atomic<int> g_installed_pid{0};  // the process whose threads have the handler
VdsoRange g_vdso;                     // written before a stop is requested
KernelSigaction g_libc_action{};      // libc's own on kLibcSignal
KernelSigaction g_program_action{};   // what the program had on our signal; called for signals that are not ours

void call_program_handler(int signal, siginfo_t* info, void* context) {
  if (g_program_action.handler == kHandlerDefault || g_program_action.handler == kHandlerIgnore) return;
  if (g_program_action.flags & SA_SIGINFO)
    reinterpret_cast<void (*)(int, siginfo_t*, void*)>(g_program_action.handler)(signal, info, context);
  else
    reinterpret_cast<void (*)(int)>(g_program_action.handler)(signal);
}

// Runs with every signal blocked. Parks the thread unless it is inside the shim, and repairs the interrupted call.
void stop_here(void* context) {
  const std::uint32_t generation = g_stop_generation.load(std::memory_order_acquire);
  const int tid = raw_gettid();
  ParkSlot* slot = park_slot(generation, tid, false);
  const bool seen = slot != nullptr && slot->seen_valid.load(std::memory_order_acquire) == generation;
  BlockedSyscall blocked_in;
  if (seen) slot->seen.load(&blocked_in);
  InterruptedCall call(static_cast<ucontext_t*>(context), seen ? &blocked_in : nullptr);
  const std::uint32_t requested = g_stop_requested.load(std::memory_order_acquire);
  if (requested != 0 && (t_depth.depth == 0 || !guarded(Guard::kParkOutside)) && !is_exempt(tid)) {
    // The kernel's code for reading clocks cannot go on under another kernel: the thread leaves it first.
    const auto at = static_cast<std::uint64_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    if (slot != nullptr && g_vdso.contains(at)) {
      slot->signalled.store(0, std::memory_order_relaxed);  // the next scan, which is due now, asks again
      g_park_arrivals.fetch_add(1);
      futex_wake(&g_park_arrivals, 1);
    } else {
      std::uint64_t mask;
      std::memcpy(&mask, &static_cast<ucontext_t*>(context)->uc_sigmask, sizeof(mask));
      park_here(requested, mask);
    }
  }
  call.go_on();
}

void on_stop_signal(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  if (raw_getpid() != g_installed_pid.load(std::memory_order_relaxed)) return;
  if (info->si_code != SI_TKILL || info->si_pid != g_installed_pid.load(std::memory_order_relaxed))
    call_program_handler(signal, info, context);
  else
    stop_here(context);
  errno = saved;
}

// The stop signals that have come to this thread while it blocked them.
void take_blocked_stop_signals() {
  const std::uint64_t ours = signal_bit(stop_signal_number());
  const timespec at_once{};
  while (::syscall(SYS_rt_sigtimedwait, &ours, nullptr, &at_once, sizeof(ours)) > 0) {
  }
}

// libc sends this signal with SI_TKILL, by tgkill(2); shadowib queues it with SI_QUEUE and g_libc_action as value.
void on_libc_signal(int signal, siginfo_t* info, void* context) {
  if (info->si_code != SI_QUEUE || info->si_value.sival_ptr != &g_libc_action) {
    reinterpret_cast<void (*)(int, siginfo_t*, void*)>(g_libc_action.handler)(signal, info, context);
    return;
  }
  const int saved = errno;
  if (raw_getpid() == g_installed_pid.load(std::memory_order_relaxed)) {
    take_blocked_stop_signals();
    stop_here(context);
  }
  errno = saved;
}

// The kernel wants a return path from the handler; these bytes are what debuggers recognise as a signal frame.
extern "C" void shadowib_signal_return();
asm(".text\n.hidden shadowib_signal_return\n.globl shadowib_signal_return\n.type shadowib_signal_return,@function\n"
    "nop\nshadowib_signal_return:\n  .byte 0x48,0xc7,0xc0,0x0f,0x00,0x00,0x00,0x0f,0x05\n");

// libc's helper threads (SIGEV_THREAD timers, POSIX AIO) block every signal but those of libc itself. For a thread
// that blocks the stop signal and not this one, libc's signal is the way in. Its handler becomes ours, for good, when
// the first such thread is met: libc installs its own with the process's first thread, and never again.
bool install_libc_signal() {
  if (g_libc_action.handler != kHandlerDefault) return true;
  KernelSigaction libc{};
  if (raw_sigaction(kLibcSignal, nullptr, &libc) != 0 || libc.handler == kHandlerDefault ||
      libc.handler == kHandlerIgnore || (libc.flags & SA_SIGINFO) == 0)
    return false;
  g_libc_action = libc;
  KernelSigaction action{};
  action.handler = reinterpret_cast<std::uintptr_t>(&on_libc_signal);
  action.flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK | kKernelRestorer;
  action.restorer = reinterpret_cast<std::uintptr_t>(&shadowib_signal_return);
  action.mask = ~std::uint64_t{0};
  return raw_sigaction(kLibcSignal, &action, nullptr) == 0;
}

void ask_by_libc_signal(std::uint32_t generation, int tid, ParkSlot* slot) {
  if (slot->by_libc.load(std::memory_order_relaxed) == generation) return;
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
  std::uint64_t blocked = 0;
  if (!read_status_field(path, "SigBlk:", &blocked)) return;
  if ((blocked & signal_bit(stop_signal_number())) == 0 || (blocked & signal_bit(kLibcSignal)) != 0) return;
  if (!install_libc_signal()) return;
  siginfo_t info{};
  info.si_signo = kLibcSignal;
  info.si_code = SI_QUEUE;
  info.si_pid = raw_getpid();
  info.si_value.sival_ptr = &g_libc_action;
  slot->by_libc.store(generation, std::memory_order_relaxed);
  if (::syscall(SYS_rt_tgsigqueueinfo, raw_getpid(), tid, kLibcSignal, &info) != 0)
    slot->by_libc.store(0, std::memory_order_relaxed);  // the next scan tries again
}

struct Scan {
  std::uint32_t generation;
  int self;
  bool look_at_states;
  std::uint32_t seen = 0;
  int unparked = 0;  // the first that is not parked
  bool full = false;
};

bool visit_thread(int tid, void* arg) {
  auto* scan = static_cast<Scan*>(arg);
  if (tid == scan->self || is_exempt(tid)) return true;
  ParkSlot* slot = ++scan->seen > kMaxThreads ? nullptr : park_slot(scan->generation, tid, true);
  if (slot == nullptr) {
    scan->full = true;
    return false;
  }
  if (slot->parked.load(std::memory_order_acquire) == scan->generation) return true;
  if (slot->signalled.load(std::memory_order_relaxed) != scan->generation) {
    BlockedSyscall seen;
    read_blocked_syscall(tid, &seen);
    slot->seen.store(seen);
    slot->seen_valid.store(scan->generation, std::memory_order_release);
    slot->signalled.store(scan->generation, std::memory_order_relaxed);  // first: the handler may take it back
    if (::syscall(SYS_tgkill, raw_getpid(), tid, stop_signal_number()) != 0) {
      // EAGAIN: too many queued signals; the next scan tries again.
      slot->signalled.store(0, std::memory_order_relaxed);
      if (errno == ESRCH) return true;
    }
  } else if (scan->look_at_states) {
    char state = task_state(tid);
    if (state == 0 || state == 'Z' || state == 'X') return true;  // ended, or a leader that waits for the others
    if (state == 'S') ask_by_libc_signal(scan->generation, tid, slot);
  }
  if (scan->unparked == 0) scan->unparked = tid;
  return true;
}

Status refuse(const Scan& scan, int timeout_ms) {
  if (scan.full) {
    release_threads();
    return Status::of(Code::kRefused, 0, "pid %d has more than %u threads; a stop cannot hold them", raw_getpid(),
                      kMaxThreads);
  }
  char thread[200];
  describe_task(scan.unparked, thread, sizeof(thread));
  release_threads();
  return Status::of(
      Code::kRefused, 0,
      "pid %d: %s did not stop within %d ms (it blocks signal %d, sleeps in the kernel, or stays in a verbs "
      "call); nothing was saved",
      raw_getpid(), thread, timeout_ms, stop_signal_number());
}

}  // namespace

int stop_signal_number() {
  int signal = g_signal.load(std::memory_order_relaxed);
  if (signal != 0) return signal;
  signal = SIGRTMAX - 2;
  if (const char* text = std::getenv("SHADOWIB_SIGNAL")) {
    int wanted = std::atoi(text);
    if (wanted > 0 && wanted < 65 && wanted != SIGKILL && wanted != SIGSTOP && wanted != 32 && wanted != 33)
      signal = wanted;
  }
  g_signal.store(signal, std::memory_order_relaxed);
  return signal;
}

int stop_signal() { return stop_signal_number(); }

std::uintptr_t signal_return_address() { return reinterpret_cast<std::uintptr_t>(&shadowib_signal_return); }

bool stop_owns_signal(int signal) {
  return signal == stop_signal_number() && raw_getpid() == g_installed_pid.load(std::memory_order_relaxed);
}

Status stop_install() {
  const int signal = stop_signal_number();
  KernelSigaction old{};
  KernelSigaction action{};
  action.handler = reinterpret_cast<std::uintptr_t>(&on_stop_signal);
  action.flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK | kKernelRestorer;
  action.restorer = reinterpret_cast<std::uintptr_t>(&shadowib_signal_return);
  action.mask = ~std::uint64_t{0};
  if (raw_sigaction(signal, &action, &old) != 0)
    return Status::of(Code::kPermission, errno, "cannot install the stop handler for signal %d", signal);
  if (old.handler != kHandlerDefault && old.handler != action.handler) {
    g_program_action = old;
    log_line(LogLevel::kWarn,
             "the program uses signal %d, which shadowib stops threads with; set SHADOWIB_SIGNAL to "
             "another one",
             signal);
  }
  end_sanitizer_thread();
#if !defined(__SANITIZE_THREAD__)  // which takes the lock for none where it is told of entering
  arena_protect_holders(&enter_inside, [] {
    if (leave_inside()) park_if_requested();
  });
#endif
  const std::uint64_t ours = signal_bit(signal);
  raw_sigmask(SIG_UNBLOCK, &ours, nullptr);
  g_installed_pid.store(raw_getpid());
  return {};
}

namespace {

// Whether a silent thread lacks a processor: it could run, and hardly does. A thread that works without an end has
// one. Judges at each kStarvedNs anew, and grants the first of them.
class Starvation {
 public:
  bool of(int tid, std::int64_t now) {
    if (tid == tid_ && now - since_ns_ < kStarvedNs) return true;
    std::uint64_t ran = 0;
    if (task_state(tid) != 'R' || !run_ns(tid, &ran)) return false;
    const bool starved = tid != tid_ || ran - ran_ns_ < static_cast<std::uint64_t>(now - since_ns_) / 16;
    tid_ = tid;
    since_ns_ = now;
    ran_ns_ = ran;
    return starved;
  }

 private:
  static bool run_ns(int tid, std::uint64_t* ns) {
    char text[128];
    const char* at = text;
    if (read_task_file(tid, "schedstat", text, sizeof(text)) <= 0) return false;  // not every kernel has it
    *ns = parse_number(&at);
    return true;
  }

  int tid_ = 0;
  std::int64_t since_ns_ = 0;
  std::uint64_t ran_ns_ = 0;
};

// Since the scan: then it sleeps, and does not lack a processor.
bool has_parked(std::uint32_t generation, int tid) {
  const ParkSlot* slot = park_slot(generation, tid, false);
  return slot != nullptr && slot->parked.load(std::memory_order_acquire) == generation;
}

}  // namespace

Status stop_threads(int timeout_ms, int kernel_timeout_ms, std::int64_t ends_ns) {
  if (raw_getpid() != g_installed_pid.load())
    return Status::of(Code::kInternal, 0, "pid %d has no stop handler", raw_getpid());
  const std::int64_t start = monotonic_ns(), timeout = std::int64_t{timeout_ms} * 1000000,
                     kernel_deadline = start + std::int64_t{kernel_timeout_ms} * 1000000;
  std::int64_t deadline = start + timeout;
  g_vdso = find_vdso();
  const std::uint32_t generation = g_stop_generation.load() + 1;
  g_stop_generation.store(generation);
  g_stop_ends_ns.store(ends_ns);
  g_stop_keeping.store(ends_ns != 0 ? kStopMayEnd : kStopKept);
  g_stop_requested.store(generation, std::memory_order_seq_cst);
  // All listed threads parked, twice with the same count: the list may skip an entry while others end during the
  // first reading, but nothing ends or begins once all are parked.
  std::uint32_t parked_before = UINT_MAX;
  Starvation starvation;
  for (;;) {
    const std::uint32_t arrivals = g_park_arrivals.load(std::memory_order_acquire);
    Scan scan{generation, raw_gettid(), monotonic_ns() - start > kStateCheckNs};
    if (!for_each_task(visit_thread, &scan) && !scan.full) {
      release_threads();
      return Status::of(Code::kIo, errno, "pid %d: cannot list /proc/self/task", raw_getpid());
    }
    if (scan.full) return refuse(scan, timeout_ms);
    if (scan.unparked == 0) {
      if (scan.seen == parked_before) {
        sanitizer_sees_stop();
        return {};
      }
      parked_before = scan.seen;
      continue;
    }
    parked_before = UINT_MAX;
    const std::int64_t now = monotonic_ns();
    if (now < kernel_deadline && task_state(scan.unparked) == 'D') deadline = std::max(deadline, now + timeout);
    if (now >= deadline && (now >= kernel_deadline || !starvation.of(scan.unparked, now)) &&
        !has_parked(generation, scan.unparked))
      return refuse(scan, static_cast<int>((now - start) / 1000000));
    futex_wait(&g_park_arrivals, arrivals, kRescanNs);
  }
}

bool stop_keep() {
  std::uint32_t may_end = kStopMayEnd;
  return g_stop_keeping.compare_exchange_strong(may_end, kStopKept) || may_end == kStopKept;
}

bool stop_lasts() { return g_stop_keeping.load(std::memory_order_seq_cst) != kStopEnded; }

void release_threads() {
  sanitizer_sees_end_of_stop();
  g_stop_requested.store(0, std::memory_order_seq_cst);
  futex_wake(&g_stop_requested, INT_MAX);
}

int parked_threads(ParkedThread* threads, int capacity) {
  struct List {
    ParkedThread* threads;
    int capacity, count;
  } list{threads, capacity, 0};
  for_each_parked(
      g_stop_generation.load(),
      [](int tid, void* context, void* arg) {
        auto* l = static_cast<List*>(arg);
        if (l->count < l->capacity) l->threads[l->count] = {tid, context};
        ++l->count;
      },
      &list);
  return list.count;
}

Status stop_wait_exempt_parked(int timeout_ms) {
  const std::int64_t deadline = monotonic_ns() + std::int64_t{timeout_ms} * 1000000;
  for (;;) {
    const std::uint32_t arrivals = g_park_arrivals.load(std::memory_order_acquire);
    const int tid = unparked_exempt(raw_gettid());
    if (tid == 0) {
      sanitizer_sees_stop();
      return {};
    }
    const std::int64_t left = deadline - monotonic_ns();
    if (left <= 0) {
      char thread[200];
      describe_task(tid, thread, sizeof(thread));
      return Status::of(Code::kTimeout, 0, "pid %d: helper %s of shadowib did not park within %d ms", raw_getpid(),
                        thread, timeout_ms);
    }
    futex_wait(&g_park_arrivals, arrivals, left);
  }
}

void stop_program_action(const KernelSigaction* action, KernelSigaction* old) {
  if (old != nullptr) *old = g_program_action;
  if (action == nullptr) return;
  g_program_action = *action;
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true))
    log_line(LogLevel::kWarn,
             "the program sets signal %d, which shadowib stops threads with; its handler is kept apart. "
             "SHADOWIB_SIGNAL chooses another signal",
             stop_signal_number());
}

void stop_reset_after_fork() {
  g_stop_requested.store(0);
  g_installed_pid.store(0);
  park_reset_after_fork();
}

}  // namespace shadowib
