// The log of a send or receive queue: a dense ring of slots, one per posted work request, from posting to completion.
//
// A slot's address goes down to the backend as wr_id and comes back in the completion; the program's own wr_id stays
// in the slot. Slots also hold what a restart needs to post the request again. Filled under the queue's lock by
// posts; completions only set `done` and the queue's latest, without a lock (each slot completes once).
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "shadowib/base/arena.h"
#include "shadowib/base/lock.h"
#include "shadowib/objects/ids.h"

namespace shadowib {

// What both kinds of slot begin with: all that a completion needs.
struct SlotHeader {
  std::uint64_t user_wr_id;
  std::atomic<SlotHeader*>* latest;  // where its queue keeps the slot that completed last; set once
  VirtualQpNum qp_num;               // set once, for the whole ring
  bool is_receive;                   // set once
  bool done;                         // its own completion was polled from the backend
  std::uint8_t flags;                // ibv_send_flags, with the signaling of its queue pair
  std::uint64_t sequence;            // position in the queue since its last RESET

  bool signaled() const { return (flags & IBV_SEND_SIGNALED) != 0; }  // a completion is due even on success

  // One thread may poll while another looks. What the poller has read of the slot by then may be overwritten.
  bool has_completed() const { return __atomic_load_n(&done, __ATOMIC_ACQUIRE); }
  void set_completed() { __atomic_store_n(&done, true, __ATOMIC_RELEASE); }
};

// wr.wr_id, wr.sg_list and, between posts, wr.next = null are the slot's own and set once.
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
  return (kConsuming >> (static_cast<std::uint32_t>(opcode) % 32) & 1) != 0;  // there are fewer than 32
}

// The ring. [tail(), head) are sequences posted and not known retired; slot(sequence) is valid for these.
template <typename Slot>
class WorkQueue {
 public:
  WorkQueue() = default;
  ~WorkQueue() { arena_free(slots_); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // capacity: work requests the real queue holds; extra_bytes follow each slot's scatter/gather list. False: no
  // memory.
  bool create(std::uint32_t capacity, std::uint32_t max_sge, std::uint32_t extra_bytes, bool is_receive) {
    std::uint64_t slots = 1;
    while (slots < capacity) slots *= 2;
    stride_ = (sizeof(Slot) + max_sge * sizeof(ibv_sge) + extra_bytes + 63) & ~std::uint64_t{63};
    slots_ = static_cast<char*>(arena_allocate(slots * stride_, 64));
    if (slots_ == nullptr) return false;
    mask_ = slots - 1;
    limit_ = slots;
    max_sge_ = max_sge;
    max_inline_ = extra_bytes;
    for (std::uint64_t i = 0; i < slots; ++i) {
      Slot& s = slot(i);
      s.latest = &latest_;
      s.is_receive = is_receive;
      s.wr.wr_id = reinterpret_cast<std::uint64_t>(static_cast<SlotHeader*>(&s));
      s.wr.sg_list = s.sge;
    }
    return true;
  }
  // The number completions of this queue name; for good.
  void belongs_to(VirtualQpNum qp_num) {
    for (std::uint64_t i = 0; i <= mask_; ++i) slot(i).qp_num = qp_num;
  }

  Slot& slot(std::uint64_t sequence) { return *reinterpret_cast<Slot*>(slots_ + (sequence & mask_) * stride_); }
  std::uint32_t max_sge() const { return max_sge_; }
  std::uint32_t max_inline() const { return max_inline_; }

  // Caller holds lock. True if another slot is free.
  bool has_room() { return __builtin_expect(head < limit_, 1) || reclaim(); }

  // Lock-free, from completions.
  static void complete(SlotHeader& slot) {
    slot.set_completed();  // from here on the slot may be taken for another request
    slot.latest->store(&slot, std::memory_order_release);
  }

  // The sequence behind the last completed slot: everything before it is retired. Caller holds lock or threads are
  // stopped.
  std::uint64_t retired() {
    std::uint64_t frontier = tail();
    for (std::uint64_t s = head; s > tail(); --s)
      if (slot(s - 1).has_completed()) {
        frontier = s;
        break;
      }
    return frontier;
  }
  std::uint64_t tail() const { return limit_ - (mask_ + 1); }
  void retire_to(std::uint64_t sequence) {
    if (sequence > tail()) limit_ = sequence + mask_ + 1;
  }
  void clear() {
    head = 0;
    limit_ = mask_ + 1;
    latest_ = nullptr;
  }

  SpinLock lock;
  std::uint64_t head = 0;  // written under lock

 private:
  // `latest` is the newest completion but for pollers that overtake each other, and unless it was posted again since.
  __attribute__((noinline, cold)) bool reclaim() {
    const SlotHeader* latest = latest_.load(std::memory_order_acquire);
    if (latest != nullptr && latest->has_completed()) retire_to(latest->sequence + 1);
    if (head < limit_) return true;
    retire_to(retired());
    return head < limit_;
  }

  char* slots_ = nullptr;
  std::uint64_t mask_ = 0;
  std::uint64_t limit_ = 1;   // the first sequence there is no slot for: tail() and the number of slots
  std::uint64_t stride_ = 0;  // bytes
  std::uint32_t max_sge_ = 0, max_inline_ = 0;
  std::atomic<SlotHeader*> latest_{nullptr};
};

}  // namespace shadowib
