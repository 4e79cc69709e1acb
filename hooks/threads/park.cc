#include "hooks/threads/park.h"

#include <linux/futex.h>
#include <time.h>

#include <climits>

#include "hooks/raw/raw_signal.h"
#include "hooks/raw/tasks.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/sanitizer_thread.h"
#include "hooks/threads/stop.h"
#include "hooks/threads/thread_context.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {

constinit thread_local ThreadDepth t_depth;
std::atomic<std::uint32_t> g_stop_requested{0};
std::atomic<std::uint32_t> g_stop_generation{0};
std::atomic<std::uint32_t> g_park_arrivals{0};
std::atomic<std::uint32_t> g_stop_keeping{kStopKept};
std::atomic<std::int64_t> g_stop_ends_ns{0};

namespace {

constexpr std::uint32_t kTableSize = 2 * kMaxThreads;  // a power of two; half full at most
ParkSlot g_slots[kTableSize];                          // untouched pages until the first stop

struct ExemptThread {
  std::atomic<int> tid;
  std::atomic<void*> context;  // null unless parked
};
ExemptThread g_exempt[kMaxExemptThreads];

std::uint64_t slot_key(std::uint32_t generation, int tid) {
  return std::uint64_t{generation} << 32 | static_cast<std::uint32_t>(tid);
}

ExemptThread* exempt_thread(int tid) {
  for (auto& thread : g_exempt)
    if (thread.tid.load(std::memory_order_acquire) == tid) return &thread;
  return nullptr;
}

// A thread that the loader looks a symbol up for (lazy binding, dlsym) says so in its control block (tcbhead_t of
// glibc on x86-64, gscope_flag), and dlclose waits until none does.
bool is_in_lookup() {
  std::uint32_t flag = 0;
  __asm__ volatile("movl %%fs:0x1c, %0" : "=r"(flag));
  return flag != 0;
}

// How long a parked thread may sleep; not at all if the stop has lasted too long, which it then has ended. < 0: until
// somebody wakes it.
std::int64_t sleep_or_end_the_stop(std::uint32_t generation) {
  if (g_stop_keeping.load(std::memory_order_acquire) != kStopMayEnd) return -1;
  const std::int64_t left = g_stop_ends_ns.load(std::memory_order_relaxed) - monotonic_ns();
  if (left > 0) return left;
  std::uint32_t may_end = kStopMayEnd;
  if (!g_stop_keeping.compare_exchange_strong(may_end, kStopEnded)) return -1;
  // This stop and no other: an agent that has seen its end may be stopping the program again.
  g_stop_requested.compare_exchange_strong(generation, 0);
  futex_wake(&g_stop_requested, INT_MAX);
  return 0;
}

// Not by syscall(), which is guarded: what it notes of a call with a time-out would be in the image, and a restarted
// thread, which does not come back from here, would take it for the program's.
void sleep_in_the_stop(std::uint32_t generation, std::int64_t sleep_ns) {
  const timespec time{sleep_ns / 1'000'000'000, sleep_ns % 1'000'000'000};
  raw::invoke(__NR_futex, &g_stop_requested, FUTEX_WAIT_PRIVATE, generation, sleep_ns < 0 ? nullptr : &time, nullptr,
              0);
}

void arrived() {
  g_park_arrivals.fetch_add(1, std::memory_order_release);
  futex_wake(&g_park_arrivals, INT_MAX);
}

}  // namespace

ParkSlot* park_slot(std::uint32_t generation, int tid, bool create) {
  const std::uint64_t wanted = slot_key(generation, tid);
  std::uint32_t at = static_cast<std::uint32_t>(tid) * 2654435761u & (kTableSize - 1);
  for (std::uint32_t probe = 0; probe < kTableSize; ++probe, at = (at + 1) & (kTableSize - 1)) {
    ParkSlot& slot = g_slots[at];
    std::uint64_t key = slot.key.load(std::memory_order_acquire);
    while (key >> 32 != generation) {  // free in this generation: the end of the chain
      if (!create) return nullptr;
      if (slot.key.compare_exchange_weak(key, wanted, std::memory_order_acq_rel)) return &slot;
    }
    if (key == wanted) return &slot;
  }
  return nullptr;
}

void for_each_parked(std::uint32_t generation, void (*visit)(int tid, void* context, void* arg), void* arg) {
  for (auto& slot : g_slots) {
    std::uint64_t key = slot.key.load(std::memory_order_acquire);
    if (key >> 32 != generation || slot.parked.load(std::memory_order_acquire) != generation) continue;
    visit(static_cast<int>(key & 0xffffffff), slot.context.load(), arg);
  }
  for (auto& thread : g_exempt)
    if (void* context = thread.context.load(std::memory_order_acquire)) visit(thread.tid.load(), context, arg);
}

std::uint32_t parked_in_lookup() {
  std::uint32_t threads = 0;
  for_each_parked(
      g_stop_requested.load(std::memory_order_acquire),
      [](int, void* context, void* count) {
        *static_cast<std::uint32_t*>(count) += static_cast<const ParkedContext*>(context)->in_lookup;
      },
      &threads);
  return threads;
}

void park_here(std::uint32_t generation, std::uint64_t mask) {
  ParkSlot* slot = park_slot(generation, raw_gettid(), true);
  SHADOWIB_CHECK(slot != nullptr, "more than %u threads in one stop", kMaxThreads);
  // After a restart the thread comes out of save_context again and goes on as if it had never left.
  ParkedContext here;
  here.program_mask = mask;
  here.in_lookup = is_in_lookup();
  save_context(&here.context);
  slot->context.store(&here, std::memory_order_relaxed);
  slot->parked.store(generation, std::memory_order_release);
  arrived();
  while (g_stop_requested.load(std::memory_order_acquire) == generation)
    if (const std::int64_t sleep_ns = sleep_or_end_the_stop(generation); sleep_ns != 0)
      sleep_in_the_stop(generation, sleep_ns);
}

void park_if_requested() {
  std::uint32_t generation = g_stop_requested.load(std::memory_order_acquire);
  if (generation == 0 || t_depth.depth != 0 || is_exempt(raw_gettid())) return;
  if (!stop_owns_signal(stop_signal_number()))
    return;  // a child that runs in a copy, or a vfork, of a stopping process
  const int saved = errno;
  {
    AllSignalsBlocked blocked;  // the program's handlers are not to run while it is stopped
    park_here(generation, blocked.before());
  }
  errno = saved;
}

void stop_exempt_this_thread() {
  const int tid = raw_gettid();
  for (auto& thread : g_exempt) {
    int expected = 0;
    if (!thread.tid.compare_exchange_strong(expected, tid)) continue;
    // From now on a stop does not take it for a thread of libc's, which leaves these signals unblocked.
    raw_sigmask(SIG_UNBLOCK, &kLibcSignals, nullptr);
    return;
  }
  SHADOWIB_CHECK(false, "more than %d threads of our own", kMaxExemptThreads);
}

void stop_unexempt_this_thread() {
  if (ExemptThread* thread = exempt_thread(raw_gettid())) thread->tid.store(0, std::memory_order_release);
}

void park_exempt_thread_while(const std::atomic<std::uint32_t>* word, std::uint32_t value) {
  ExemptThread* thread = exempt_thread(raw_gettid());
  SHADOWIB_CHECK(thread != nullptr, "thread %d parks as one of ours, but is not exempt", raw_gettid());
  sanitizer_sees_leaving();
  AllSignalsBlocked blocked;
  ParkedContext here;
  here.program_mask = ~std::uint64_t{0};
  save_context(&here.context);
  thread->context.store(&here, std::memory_order_release);
  arrived();
  while (word->load(std::memory_order_acquire) == value) futex_wait(word, value);
  sanitizer_sees_entering();
  thread->context.store(nullptr, std::memory_order_release);
}

bool is_exempt(int tid) { return exempt_thread(tid) != nullptr; }

int unparked_exempt(int self) {
  for (auto& thread : g_exempt) {
    int tid = thread.tid.load(std::memory_order_acquire);
    if (tid != 0 && tid != self && thread.context.load(std::memory_order_acquire) == nullptr) return tid;
  }
  return 0;
}

void park_reset_after_fork() {
  for (auto& thread : g_exempt) {
    thread.tid.store(0);
    thread.context.store(nullptr);
  }
}

}  // namespace shadowib
