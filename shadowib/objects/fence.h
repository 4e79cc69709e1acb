// Fences: what closes a tail of send requests that nobody has asked a completion of.
//
// On a backend where only a completion tells that a request has run (BackendOps::needs_signals), every unsignaled
// request is forced (forced_signals.h). SHADOWIB_SIGNAL_EVERY has a reliable connection force every k-th of them
// only, and the others are spared. So at a checkpoint some may have run and nothing says so. A fence says it: a
// request of the shim's own behind them, which completes when all before it have. It binds a window of type 1 to
// nothing, under the key that the window has. That stays local, and needs no memory region and no right of the peer.
// An adapter may run it again with what it repeats before it: it is the same each time
// (docs/internals/decisions/local-fence.md).
//
// A message that waits for a receive keeps a fence waiting, too. It is known by the peer's counts, and so is every
// message before it, but no one-sided request. Hence no message is posted behind one-sided requests that were spared,
// without a fence between.
#pragma once

#include "shadowib/objects/work_queue.h"

namespace shadowib {

struct ShadowQp;

struct Fence {
  SlotHeader slot{};
  std::uint64_t at = 0;  // the first send sequence that it does not close
  bool pending() const { return !slot.done(); }
};

// A queue pair's. Under send.lock, or while threads are stopped.
struct Sparing {
  static constexpr std::uint32_t kOneSided = 1u << IBV_WR_RDMA_WRITE | 1u << IBV_WR_RDMA_READ |
                                             1u << IBV_WR_ATOMIC_CMP_AND_SWP | 1u << IBV_WR_ATOMIC_FETCH_AND_ADD;
  // They are seldom, and their requests have more to copy.
  static constexpr std::uint32_t kLong = ~(kConsumingReceive | 1u << IBV_WR_RDMA_WRITE | 1u << IBV_WR_RDMA_READ);
  static constexpr std::uint32_t kRoom = 2;  // fences at a time

  std::uint64_t until = 0;         // unsignaled requests before this sequence are spared, if they are
  std::uint32_t opcodes = 0;       // of these: kConsumingReceive, kOneSided, or 0: not chosen yet
  std::uint32_t every = 0;         // k; 0: all are forced
  std::uint32_t long_way = kLong;  // opcodes that no short way takes; messages, if they have to look for a due fence
  std::uint64_t forced = 0;        // requests since the queue pair was made, while others were spared
  std::uint32_t room = 0;          // requests that the real queue holds for fences; 0: none can be posted
  std::uint64_t proven = 0;        // the send sequence before which everything has run, whatever its slots say
  Fence of_checkpoint, of_message;

  // A message has to look whether a fence is due.
  bool before_message() const { return (long_way & kConsumingReceive) != 0; }
  void note_before_message() { long_way = kLong | kConsumingReceive; }
  void forget_before_message() { long_way = kLong; }

  void stop() {
    every = 0;
    until = 0;
  }
  // All that was posted has gone, and nothing of it will complete any more.
  void reset() {
    until = proven = of_checkpoint.at = of_message.at = 0;
    opcodes = 0;
    forget_before_message();
    of_checkpoint.slot.release();
    of_message.slot.release();
  }
  // Before the real queue pair is made again, without room for fences.
  void forget() {
    stop();
    reset();
    room = 0;
  }
};

// Binds that window to nothing.
ibv_send_wr fence_request(ibv_mw* window);
// Posts one behind all requests of the queue pair. 0, an errno, or EBUSY: this one is under way, and may be behind
// fewer. Caller holds send.lock.
int post_fence(ShadowQp& qp, Fence& fence);
// Before a message is posted, which is true of before_message alone. 0 or the errno to refuse it with.
int close_before_message(ShadowQp& qp);
// Notes what fences prove that have completed: with an error, too, for then all before them have completed. Threads
// are stopped, and the completion queue is drained.
void note_fences(ShadowQp& qp);
// The request at `sequence`, if there is one, has no completion to come.
bool is_spared(ShadowQp& qp, std::uint64_t sequence);

}  // namespace shadowib
