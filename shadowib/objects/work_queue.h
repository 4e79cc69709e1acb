// The log of a send or receive queue: a dense ring of slots, one per posted work request, from posting to completion.
//
// A slot's address goes down to the backend as wr_id and comes back in the completion; the program's own wr_id stays
// in the slot. Slots also hold what a restart needs to post the request again. Filled under the queue's lock by
// posts; completions only set `done` and the hint, without a lock (each slot completes once).
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "shadowib/base/arena.h"
#include "shadowib/base/lock.h"

namespace shadowib {

struct ShadowQp;

// What both kinds of slot begin with: all that a completion needs.
struct SlotHeader {
  std::uint64_t user_wr_id;
  ShadowQp* qp;            // set once, when the ring is made
  std::uint64_t sequence;  // position in the queue since its last RESET
  std::uint32_t message;   // send: receive-consuming messages posted before this one on the connection (wraps)
  bool is_receive;         // set once
  bool done;               // its own completion was polled from the backend
  bool signaled;           // a completion is due even on success
};

struct SendSlot : SlotHeader {
  ibv_send_wr wr;  // as posted, with wr_id = this, keys virtual, sg_list = sge
  ibv_sge sge[];   // [0..max_sge), then max_inline bytes of inline data
};

struct RecvSlot : SlotHeader {
  ibv_recv_wr wr;
  ibv_sge sge[];
};

inline bool consumes_receive(ibv_wr_opcode opcode) {
  constexpr std::uint32_t kConsuming =
      1u << IBV_WR_SEND | 1u << IBV_WR_SEND_WITH_IMM | 1u << IBV_WR_RDMA_WRITE_WITH_IMM | 1u << IBV_WR_SEND_WITH_INV;
  return static_cast<std::uint32_t>(opcode) < 32 && (kConsuming >> opcode & 1) != 0;
}

// The ring. [tail, head) are sequences posted and not known retired; slot(sequence) is valid for these.
template <typename Slot>
class WorkQueue {
 public:
  WorkQueue() = default;
  ~WorkQueue() { arena_free(slots_); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // capacity: work requests the real queue holds; extra_bytes follow each slot's scatter/gather list. False: no
  // memory.
  bool create(ShadowQp* qp, std::uint32_t capacity, std::uint32_t max_sge, std::uint32_t extra_bytes,
              bool is_receive) {
    std::uint64_t slots = 1;
    while (slots < capacity) slots *= 2;
    stride_ = (sizeof(Slot) + max_sge * sizeof(ibv_sge) + extra_bytes + 63) & ~std::uint32_t{63};
    slots_ = static_cast<char*>(arena_allocate(slots * stride_, 64));
    if (slots_ == nullptr) return false;
    mask_ = slots - 1;
    max_sge_ = max_sge;
    max_inline_ = extra_bytes;
    for (std::uint64_t i = 0; i < slots; ++i) {
      slot(i).qp = qp;
      slot(i).is_receive = is_receive;
    }
    return true;
  }

  Slot& slot(std::uint64_t sequence) { return *reinterpret_cast<Slot*>(slots_ + (sequence & mask_) * stride_); }
  std::uint32_t max_sge() const { return max_sge_; }
  std::uint32_t max_inline() const { return max_inline_; }

  // Caller holds lock. True if another slot is free.
  bool has_room() { return head - tail <= mask_ || reclaim(); }

  // Lock-free, from completions.
  void complete(SlotHeader& slot) {
    slot.done = true;
    done_hint_.store(slot.sequence + 1, std::memory_order_release);
  }

  // The sequence behind the last completed slot: everything before it is retired. Caller holds lock or threads are
  // stopped.
  std::uint64_t retired() {
    std::uint64_t frontier = tail;
    for (std::uint64_t s = head; s > tail; --s)
      if (slot(s - 1).done) {
        frontier = s;
        break;
      }
    return frontier;
  }
  void retire_to(std::uint64_t sequence) {
    if (sequence > tail) tail = sequence;
  }
  void clear() {
    tail = head = 0;
    done_hint_ = 0;
  }

  SpinLock lock;
  std::uint64_t head = 0;  // written under lock
  std::uint64_t tail = 0;

 private:
  __attribute__((noinline)) bool reclaim() {
    std::uint64_t hint = done_hint_.load(std::memory_order_acquire);
    if (hint > tail && hint <= head) tail = hint;
    if (head - tail <= mask_) return true;
    retire_to(retired());
    return head - tail <= mask_;
  }

  char* slots_ = nullptr;
  std::uint64_t mask_ = 0;
  std::uint32_t stride_ = 0, max_sge_ = 0, max_inline_ = 0;
  std::atomic<std::uint64_t> done_hint_{0};
};

}  // namespace shadowib
