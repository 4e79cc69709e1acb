// Where threads wait while the process is stopped, and the table that knows them. Internal to hooks/.
#pragma once

#include <atomic>
#include <cstdint>

#include "hooks/threads/blocked_call.h"

namespace shadowib {

inline constexpr std::uint32_t kMaxThreads = 8192;  // that one stop can hold
inline constexpr int kMaxExemptThreads = 64;

// A BlockedSyscall that one thread writes and another, late for its stop, may read meanwhile: it then gets a mixture
// that matches no registers, but no undefined behaviour.
class SharedBlockedSyscall {
 public:
  void store(const BlockedSyscall& call) {
    number_.store(call.number, std::memory_order_relaxed);
    for (int i = 0; i < 6; ++i) arguments_[i].store(call.arguments[i], std::memory_order_relaxed);
    stack_pointer_.store(call.stack_pointer, std::memory_order_relaxed);
    program_counter_.store(call.program_counter, std::memory_order_relaxed);
  }
  void load(BlockedSyscall* call) const {
    call->number = number_.load(std::memory_order_relaxed);
    for (int i = 0; i < 6; ++i) call->arguments[i] = arguments_[i].load(std::memory_order_relaxed);
    call->stack_pointer = stack_pointer_.load(std::memory_order_relaxed);
    call->program_counter = program_counter_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<std::int64_t> number_{0};
  std::atomic<std::uint64_t> arguments_[6]{};
  std::atomic<std::uint64_t> stack_pointer_{0}, program_counter_{0};
};

// One thread in one stop. Entries are taken by compare-and-swap, by the stopping thread or by the thread itself, and
// are free again when the next stop (generation) begins, so nothing is ever erased.
struct ParkSlot {
  std::atomic<std::uint64_t> key;         // generation << 32 | tid
  std::atomic<std::uint32_t> parked;      // generation, once the thread is parked
  std::atomic<std::uint32_t> signalled;   // generation, once the signal is sent
  std::atomic<std::uint32_t> seen_valid;  // generation, once `seen` is written
  std::atomic<std::uint32_t> by_libc;     // generation, once libc's signal is sent as well
  std::atomic<void*> context;             // ParkedContext on the thread's stack
  SharedBlockedSyscall seen;              // what it was blocked in just before the signal
};

// Generation of the latest stop; g_stop_requested is it while the stop lasts, else 0.
extern std::atomic<std::uint32_t> g_stop_generation;
// Decides when the stop ends. Its keeper ends it alone; from g_stop_ends_ns (CLOCK_MONOTONIC) on, the parked thread
// that first sees it abandoned ends it.
enum StopKeeping : std::uint32_t { kStopKept, kStopMayEnd, kStopEnded };
extern std::atomic<std::uint32_t> g_stop_keeping;
extern std::atomic<std::int64_t> g_stop_ends_ns;
// Counts arrivals; the stopping thread sleeps on it.
extern std::atomic<std::uint32_t> g_park_arrivals;

// The entry of `tid` in `generation`, made if `create`; null if there is none or the table is full.
ParkSlot* park_slot(std::uint32_t generation, int tid, bool create);

// Calls visit(tid, context) for each thread parked in `generation`, exempt ones included.
void for_each_parked(std::uint32_t generation, void (*visit)(int tid, void* context, void* arg), void* arg);

// Parks the caller until the stop `generation` is over. All signals are blocked; `mask`: what was blocked before.
void park_here(std::uint32_t generation, std::uint64_t mask);

bool is_exempt(int tid);
// The first exempt thread other than `self` that is not parked, or 0.
int unparked_exempt(int self);
void park_reset_after_fork();

}  // namespace shadowib
