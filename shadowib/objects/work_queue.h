// The log of a send or receive queue: a dense ring of slots, one per posted work request, from posting to completion.
//
// A slot's address goes down to the backend as wr_id and comes back in the completion; the program's own wr_id stays
// in the slot. Slots also hold what a restart needs to post the request again. Filled under the queue's lock by
// posts; completions only set the status, without a lock (each slot completes once). A slot is used again only when
// its own completion was taken out of it, or none will come. A poller may be held up between the backend's queue and
// the slot for as long as the scheduler likes, while others poll later completions. So the whole account on the hot
// path is the status of the slot that comes next; what is retired is worked out when somebody asks.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "shadowib/base/arena.h"
#include "shadowib/base/lock.h"
#include "shadowib/objects/ids.h"

namespace shadowib {

// The longest scatter/gather list of a request that the shim offers, whatever the device does: posts after a restart
// translate theirs on the stack.
inline constexpr std::uint32_t kMaxSge = 64;

// The beginning of both kinds of slot: all that a completion needs.
struct SlotHeader {
  // The status of a slot whose completion has not been taken. Polls turn back the wr_id of a kPlain one, and look
  // closer at others.
  enum Pending : std::uint8_t {
    kSpared = 0xFB,  // not signaled, on a queue pair that forces one request of many: no completion but in error
    kFence = 0xFC,   // a request of the shim's own (objects/fence.h): the program sees nothing of it
    kForced = 0xFD,  // signaled by the shim alone: the program sees no success
    kApart = 0xFE,   // the completion names its queue pair otherwise than the program knows it
    kPlain = 0xFF,
  };

  std::uint64_t user_wr_id;
  VirtualQpNum qp_num;               // the same in the whole ring; 0: the completion names it, and is to be turned
  std::atomic<std::uint8_t> status;  // Pending, or the ibv_wc_status its own completion had
  std::uint8_t flags;                // set once: IBV_SEND_SIGNALED if all requests of the ring are
  bool is_receive;                   // set once

  bool done() const { return status.load(std::memory_order_acquire) < kSpared; }
  // As done(), for the hot path.
  bool is_free() const { return is_below<kSpared>(status); }
  bool is_spared() const { return status.load(std::memory_order_acquire) == kSpared; }
  bool forced() const { return status.load(std::memory_order_relaxed) == kForced; }
  void pend(Pending as) { status.store(as, std::memory_order_relaxed); }
  void release() { complete(IBV_WC_SUCCESS); }  // nothing was posted, or nothing more will come: free for the next
  // From completions, without a lock. The slot may be used again as soon as this is done.
  void complete(ibv_wc_status with) { status.store(static_cast<std::uint8_t>(with), std::memory_order_release); }
};

// wr.wr_id, wr.sg_list and, between posts, wr.next = null are the slot's own and set once.
struct SendSlot : SlotHeader {
  using Request = ibv_send_wr;
  ibv_send_wr wr;  // as posted, with wr_id = this, keys virtual, sg_list = list(); signaled if forced

  // [0..max_sge), then max_inline bytes of inline data. It lies where a bind has its window, since a bind has no
  // list: so what a common request needs is in two cache lines, not three.
  static constexpr std::size_t kListAt = sizeof(SlotHeader) + offsetof(ibv_send_wr, bind_mw);
  ibv_sge* list() { return reinterpret_cast<ibv_sge*>(reinterpret_cast<char*>(this) + kListAt); }

  // One is due even on success. A poller that takes a force back has yet to take the completion.
  bool signaled() const {
    const unsigned asked = __atomic_load_n(&wr.send_flags, __ATOMIC_RELAXED);
    return ((asked | flags) & IBV_SEND_SIGNALED) != 0 || forced();
  }
  // The program has asked for its completion.
  bool asked_for() const { return signaled() && !forced(); }
  // Gives the request the flags that the program gave it. Before the slot becomes another kind, or is done in error.
  void take_force_back() {
    if (forced()) __atomic_store_n(&wr.send_flags, wr.send_flags & ~unsigned{IBV_SEND_SIGNALED}, __ATOMIC_RELAXED);
  }
};

struct RecvSlot : SlotHeader {
  using Request = ibv_recv_wr;
  ibv_recv_wr wr;

  static constexpr std::size_t kListAt = sizeof(SlotHeader) + sizeof(ibv_recv_wr);
  ibv_sge* list() { return reinterpret_cast<ibv_sge*>(reinterpret_cast<char*>(this) + kListAt); }
  const ibv_sge* list() const { return const_cast<RecvSlot*>(this)->list(); }

  static constexpr bool signaled() { return true; }
};

// The opcodes that do; there are fewer than 32.
inline constexpr std::uint32_t kConsumingReceive =
    1u << IBV_WR_SEND | 1u << IBV_WR_SEND_WITH_IMM | 1u << IBV_WR_RDMA_WRITE_WITH_IMM | 1u << IBV_WR_SEND_WITH_INV;
inline bool consumes_receive(ibv_wr_opcode opcode) {
  return (kConsumingReceive >> (static_cast<std::uint32_t>(opcode) % 32) & 1) != 0;
}
// *count += consumes_receive(opcode), for the hot path.
inline void count_message(std::uint32_t* count, ibv_wr_opcode opcode) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  asm("btl %1, %2\n\tadcl $0, %0"
      : "+m"(*count)
      : "r"(static_cast<std::uint32_t>(opcode)), "r"(kConsumingReceive)
      : "cc");
#else
  *count += consumes_receive(opcode);
#endif
}

// The slot that the short way finds where it is closed: never free.
struct BusySlot : SlotHeader {
  constexpr BusySlot() : SlotHeader{0, {0}, {kApart}, 0, false} {}
};
inline constinit BusySlot g_busy_slot;

// The ring. [tail(), head) are sequences posted and not known retired; slot(sequence) is valid for these.
template <typename Slot>
class WorkQueue {
 public:
  // Posts use one cache line, if the queue lies at the beginning of one.
  SpinLock lock;
  std::uint64_t head = 0;  // written under lock
  // The arguments of the post that is under way on the short way; under lock.
  typename Slot::Request* posting = nullptr;
  typename Slot::Request** posting_bad = nullptr;
  // Sends that consume receives, posted since the connection began (wraps); under lock.
  std::uint32_t messages = 0;

 private:
  std::uint32_t short_mask_ = 0;
  char* short_slots_ = nullptr;
  std::uint64_t stride_ = 0;   // bytes
  std::uint64_t free_to_ = 0;  // a spared slot may be taken by a sequence before this: a later request has run

 public:
  WorkQueue() = default;
  ~WorkQueue() { arena_free(slots_); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // capacity: work requests the real queue holds; extra_bytes follow each slot's scatter/gather list; signals_all:
  // the queue pair was created with sq_sig_all. False: no memory.
  bool create(std::uint32_t capacity, std::uint32_t max_sge, std::uint32_t extra_bytes, bool is_receive,
              bool signals_all = false) {
    std::uint64_t slots = 1;
    while (slots < capacity) slots *= 2;
    const std::size_t bytes = std::max(sizeof(Slot), Slot::kListAt + max_sge * sizeof(ibv_sge) + extra_bytes);
    stride_ = (bytes + 63) & ~std::uint64_t{63};
    slots_ = static_cast<char*>(arena_allocate(slots * stride_, 64));
    if (slots_ == nullptr) return false;
    mask_ = slots - 1;
    if (short_slots_ == nullptr) {  // else it is closed
      short_slots_ = slots_;
      short_mask_ = static_cast<std::uint32_t>(mask_);
    }
    max_sge_ = max_sge;
    max_inline_ = extra_bytes;
    for (std::uint64_t i = 0; i < slots; ++i) {
      Slot& s = slot(i);
      s.is_receive = is_receive;
      s.flags = signals_all ? IBV_SEND_SIGNALED : 0;
      s.wr.wr_id = reinterpret_cast<std::uint64_t>(static_cast<SlotHeader*>(&s));
      s.wr.sg_list = s.list();
    }
    return true;
  }
  // The number completions of this queue name. Another only while nobody posts or polls.
  void belongs_to(VirtualQpNum qp_num) {
    for (std::uint64_t i = 0; i <= mask_; ++i) slot(i).qp_num = qp_num;
  }

  // The next slot, as the short way of posts sees it: never free once that is closed. Caller holds lock.
  Slot& short_slot() { return *reinterpret_cast<Slot*>(short_slots_ + (head & short_mask_) * stride_); }
  // Whether that slot may be taken: it is free, or it is spared, and has run.
  bool may_take(const Slot& short_slot) const {
    return short_slot.is_free() || (is_equal<SlotHeader::kSpared>(short_slot.status) && head < free_to_);
  }
  // Has the processor fetch what the next post writes, the slot behind this one. With many queue pairs it is in no
  // near cache.
  void prefetch_behind(const Slot& slot) const {
    const char* const next = reinterpret_cast<const char*>(&slot) + stride_;
    __builtin_prefetch(next, 1);
    if (Slot::kListAt >= 64) __builtin_prefetch(next + 64, 1);
  }
  // From now on no request goes down as it is. Caller holds lock, or nobody posts.
  void close_short_way() {
    short_slots_ = reinterpret_cast<char*>(static_cast<SlotHeader*>(&g_busy_slot));
    short_mask_ = 0;
  }

  Slot& slot(std::uint64_t sequence) { return *reinterpret_cast<Slot*>(slots_ + (sequence & mask_) * stride_); }
  std::uint64_t slots() const { return mask_ + 1; }  // a power of two
  bool holds(const void* slot) const { return slot >= slots_ && slot < slots_ + (mask_ + 1) * stride_; }
  std::uint64_t index_of(const SlotHeader* slot) const {
    return static_cast<std::uint64_t>(reinterpret_cast<const char*>(slot) - slots_) / stride_;
  }
  // The sequence of a slot that is pending. No lock: until it completes, posts do not lap it.
  __attribute__((no_sanitize("thread"))) std::uint64_t sequence_of(const SlotHeader* slot) const {
    const std::uint64_t last = __atomic_load_n(&head, __ATOMIC_RELAXED) - 1;
    return last - ((last - index_of(slot)) & mask_);
  }
  std::uint32_t max_sge() const { return max_sge_; }
  std::uint32_t max_inline() const { return max_inline_; }

  // Caller holds lock. True if the next slot, slot(head), is free.
  bool has_room() { return __builtin_expect(is_free(head), 1) || reclaim(1); }

  // Likewise for the next `count` slots.
  bool has_room_for(std::uint64_t count) { return count <= slots() && (are_free(count) || reclaim(count)); }

  // The sequence behind the last completed slot: everything before it is retired. Caller holds lock or threads are
  // stopped.
  std::uint64_t retired() {
    std::uint64_t frontier = head;
    while (frontier > tail() && !slot(frontier - 1).done()) --frontier;
    return frontier;
  }
  // Everything before it is known to be retired; what has completed since is not looked at.
  std::uint64_t tail() const { return head > mask_ + 1 ? std::max(tail_, head - (mask_ + 1)) : tail_; }
  // Caller knows that no completion will come for what is pending before `sequence`.
  void retire_to(std::uint64_t sequence) {
    for (std::uint64_t s = tail(); s < sequence; ++s)
      if (!slot(s).done()) slot(s).release();
    tail_ = std::max(tail_, sequence);
  }
  void clear() {
    for (std::uint64_t i = 0; i <= mask_; ++i) slot(i).release();
    head = tail_ = free_to_ = 0;
  }

 private:
  // The slot for a sequence that is to be posted, if those before it are.
  bool is_free(std::uint64_t sequence) {
    const Slot& s = slot(sequence);
    return s.done() || (s.is_spared() && sequence < free_to_);
  }
  bool are_free(std::uint64_t count) {
    for (std::uint64_t s = head; s < head + count; ++s)
      if (!is_free(s)) return false;
    return true;
  }
  // True if it has made room for `count`. A queue of requests that nobody asks a completion of comes here once a
  // round. Spared ones are taken as they are from then on; others are looked at one by one.
  __attribute__((noinline)) bool reclaim(std::uint64_t count) {
    std::uint64_t sequence = tail();
    const std::uint64_t ran = last_proof(sequence);
    if (ran != 0) free_to_ = std::max(free_to_, ran + 1 + slots());
    if (are_free(count)) return true;
    char* at = reinterpret_cast<char*>(&slot(sequence));
    char* const end = slots_ + (mask_ + 1) * stride_;
    for (; sequence < ran; ++sequence) {
      Slot& s = *reinterpret_cast<Slot*>(at);
      if (!s.done()) {
        if (s.signaled()) break;
        s.release();
      }
      at += stride_;
      if (at == end) at = slots_;
    }
    while (sequence < head && slot(sequence).done()) ++sequence;
    tail_ = sequence;
    return are_free(count);
  }
  // The last request, not before `first`, whose completion tells that everything before it has run; 0 if there is
  // none. A flush tells nothing: those before it may be flushed too.
  std::uint64_t last_proof(std::uint64_t first) {
    for (std::uint64_t s = head; s-- > first;) {
      const std::uint8_t status = slot(s).status.load(std::memory_order_acquire);
      if (status < SlotHeader::kSpared && status != IBV_WC_WR_FLUSH_ERR) return s;
    }
    return 0;
  }

  char* slots_ = nullptr;
  std::uint64_t mask_ = 0;
  std::uint64_t tail_ = 0;
  std::uint32_t max_sge_ = 0, max_inline_ = 0;
};

}  // namespace shadowib
