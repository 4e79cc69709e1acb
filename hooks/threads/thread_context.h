// The state with which a thread goes on after a restart: registers, and the state the kernel keeps for it.
//
// A thread that parks calls save_context() on itself and then waits. In the original process the call returns 0. In a
// restarted process the thread comes out of the same call a second time, with 1, on the same stack and with the same
// signal mask; it finds the world as it was when the image was written and so goes on waiting on whatever word the
// image holds. The full extended state (vector registers, signal mask and alternate stack of the interrupted code)
// needs no record here: it lies in the signal frame, from which the handler's return restores it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shadowib {

inline constexpr int kMaxPendingPerThread = 8;
inline constexpr std::uint32_t kThreadContextMagic = 0x32435453;       // "STC2"
inline constexpr std::uint32_t kFirstThreadContextMagic = 0x31435453;  // "STC1": ends before scheduler_runtime_ns
inline constexpr int kMemoryNodeWords = 16;                            // 1,024 nodes, the most of any kernel

// Plain data of fixed layout: it is read by the restorer out of the restored memory. At most 2 KiB, on the stack.
struct ThreadContext {
  // Registers. Offsets are known to x86_64/save_context.S.
  std::uint64_t rbx, rbp, r12, r13, r14, r15;  // 0 .. 40
  std::uint64_t rsp;                           // 48: as after the return
  std::uint64_t rip;                           // 56: where save_context returns to
  std::uint64_t signal_mask;                   // 64: while parked
  std::uint32_t mxcsr;                         // 72
  std::uint16_t x87_control;                   // 76
  std::uint16_t unused;
  std::uint64_t resume_entry;  // 80: code in the image that a restorer jumps to, rdi = this context

  std::uint32_t magic;  // kThreadContextMagic once the record is complete
  std::int32_t tid;
  std::uint64_t fs_base, gs_base;
  std::uint64_t robust_list_head, robust_list_bytes;
  std::uint64_t clear_child_tid;
  std::uint64_t rseq_area;  // 0: not registered
  std::uint32_t rseq_bytes, rseq_signature;
  std::uint64_t altstack_address, altstack_bytes;
  std::int32_t altstack_flags;
  std::uint32_t pending_count;     // of pending[]
  std::uint16_t pending_overflow;  // more signals were queued to this thread than there is room for
  std::uint16_t death_signal;      // which it is sent when its parent ends; 0: none
  std::uint32_t affinity_bytes;    // 0: unknown
  std::uint64_t timer_slack_ns;    // 0: unknown
  std::uint32_t scheduler_policy;
  std::int32_t nice;
  std::uint32_t scheduler_priority;
  std::uint32_t scheduler_flags;
  char name[16];
  std::uint8_t affinity[128];
  std::uint8_t pending[kMaxPendingPerThread][128];  // siginfo_t as the kernel gives it

  // Since "STC2". A value the kernel does not tell is 0, which restores nothing.
  std::uint64_t scheduler_runtime_ns, scheduler_deadline_ns, scheduler_period_ns;  // of SCHED_DEADLINE
  std::uint64_t memory_nodes[kMemoryNodeWords];                                    // of the memory policy
  std::uint32_t memory_policy;          // mode and flags as set_mempolicy(2) takes them; 0: the default
  std::uint32_t utilization_limits[2];  // uclamp: lowest, highest
  std::uint32_t io_priority;            // as ioprio_set(2) takes it
  std::uint32_t secure_bits;            // securebits of capabilities(7)
  std::uint32_t speculation[3];         // PR_GET_SPECULATION_CTRL: store bypass, indirect branch, L1D flush
  std::int32_t keyrings[2], unused2;    // numbers of the thread's and of the process's keyring
  std::uint8_t no_new_privileges;       // PR_GET_NO_NEW_PRIVS
  std::uint8_t machine_check_policy;    // PR_MCE_KILL_GET
  std::uint8_t io_flusher;              // PR_GET_IO_FLUSHER
  std::uint8_t unknown_rseq;            // restartable sequences are registered at an address the kernel keeps
};
static_assert(offsetof(ThreadContext, rsp) == 48 && offsetof(ThreadContext, signal_mask) == 64 &&
              offsetof(ThreadContext, mxcsr) == 72 && offsetof(ThreadContext, resume_entry) == 80);
static_assert(sizeof(ThreadContext) <= 2048);

// The record of a parked thread on its stack, for the imager: stop.h's ParkedThread points to it.
struct ParkedContext {
  ThreadContext context;
  std::uint64_t program_mask;  // signals that the program had blocked in it; of a thread of ours all
  bool in_lookup = false;      // the loader looks a symbol up for it
};
static_assert(offsetof(ParkedContext, context) == 0);

// Records the calling thread in *context. Returns 0, and 1 when the thread has been restored from an image.
//
// *context and the caller's frame must stay alive and unchanged until the process resumes or is restarted: call it
// directly in the function that then waits, never through a wrapper that returns. As with setjmp, locals changed
// after the first return are indeterminate after the second. Async-signal-safe; keeps errno; takes no lock and no
// heap. Signals queued to the thread alone are taken out and put back, since the kernel offers no other way to see
// them; call it with all signals blocked.
extern "C" int save_context(ThreadContext* context) __attribute__((returns_twice));

}  // namespace shadowib

extern "C" {
// Set by the restorer to the number of threads; each counts itself out in shadowib_resume_context.
extern std::uint32_t shadowib_threads_in_restorer __attribute__((visibility("hidden")));
}
