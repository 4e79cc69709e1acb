// Shadow shared receive queues (SRQ), and the log of their receives.
#pragma once

#include <infiniband/verbs.h>

#include <vector>

#include "shadowib/objects/completion.h"
#include "shadowib/objects/memory.h"
#include "shadowib/objects/work_queue.h"
#include "shadowib/objects/xrc_domain.h"

namespace shadowib {

// Receives from posting to completion. Queue pairs complete them in any order, so that a slot which is still pending
// is stepped over, and the order of posting stands beside the slots.
class SharedReceiveLog {
 public:
  ~SharedReceiveLog() { arena_free(order_); }
  // False: no memory.
  bool create(std::uint32_t capacity, std::uint32_t max_sge) {
    if (!slots_.create(capacity, max_sge, 0, true)) return false;
    slots_.belongs_to({0});  // the completion says whose it is
    order_ = static_cast<std::uint64_t*>(arena_allocate(slots_.slots() * sizeof(*order_), 64));
    return order_ != nullptr;
  }
  std::uint32_t max_sge() const { return slots_.max_sge(); }

  // The next free slot, now pending, or nullptr: all are. Caller holds lock.
  RecvSlot* take() {
    for (std::uint64_t tried = 0; tried < slots_.slots(); ++tried) {
      const std::uint64_t at = cursor_++ & (slots_.slots() - 1);
      RecvSlot& slot = slots_.slot(at);
      if (!slot.done()) continue;
      order_[at] = taken_++;
      slot.pend(SlotHeader::kApart);
      return &slot;
    }
    return nullptr;
  }
  // Those posted and not completed, in the order they were posted. Caller holds lock or threads are stopped.
  std::vector<RecvSlot*> pending();
  std::uint32_t pending_count();
  bool holds(const SlotHeader* slot) const { return slots_.holds(slot); }
  // How many were posted before this one, which is pending.
  std::uint64_t order_of(const SlotHeader* slot) const { return order_[slots_.index_of(slot)]; }

  SpinLock lock;

 private:
  WorkQueue<RecvSlot> slots_;
  std::uint64_t* order_ = nullptr;  // by slot: the how-manieth receive it holds
  std::uint64_t taken_ = 0, cursor_ = 0;
};

struct ShadowSrq {
  ibv_srq srq;  // first: the program's
  ListHook hook;
  ibv_srq* real = nullptr;
  ShadowContext* context = nullptr;
  SharedReceiveLog log;
  // XRC: its domain, where its receives complete, and its number, by which initiators name it.
  ShadowXrcd* xrcd = nullptr;
  ShadowCq* cq = nullptr;
  VirtualSrqNum number;
  RealSrqNum real_number;
  ibv_srq_init_attr init{};       // as granted
  std::uint32_t armed_limit = 0;  // as settled; 0: none, or it has fired
  std::uint32_t users = 0;        // queue pairs
  AcknowledgedEvents events;      // async ones that name it
  static ShadowSrq* of(ibv_srq* srq) { return reinterpret_cast<ShadowSrq*>(srq); }
};

}  // namespace shadowib
