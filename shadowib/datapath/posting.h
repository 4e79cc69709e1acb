// Parts of a post that post.cc and post_turned.cc share. The caller has the queue's lock.
#pragma once

#include <infiniband/verbs.h>
#include <stddef.h>
#include <string.h>

#include "shadowib/objects/queue_pair.h"

namespace shadowib::posting {

template <typename Wr>
int refuse(Wr* wr, Wr** bad, int error) {
  *bad = wr;
  return error;
}

// The part of a request that the offered opcodes use, behind wr_id, next and sg_list, which the slot has its own of.
constexpr std::size_t kCopyFrom = offsetof(ibv_send_wr, num_sge), kCopyTo = offsetof(ibv_send_wr, qp_type);
static_assert(kCopyFrom == 24 && kCopyTo == 72, "ibv_send_wr has another layout than rdma-core 44's");

// The queue pair's first request that is forced.
void begin_forcing(ShadowQp& qp);
// The queue's next is forced, and what follows it may be spared: messages, or one-sided requests before any message.
void force_one_of_many(ShadowQp& qp, SendSlot& slot);

// Has an unsignaled request that is in the slot signaled, if only a completion tells that it has run. The slot's
// status is set; `otherwise`: what it is if not.
__attribute__((always_inline)) inline void force(ShadowQp& qp, SendSlot& slot, SlotHeader::Pending otherwise) {
  if (qp.forcing == ShadowQp::Forcing::kNone) return slot.pend(otherwise);
  if (__builtin_expect(qp.forcing == ShadowQp::Forcing::kBegins, 0)) begin_forcing(qp);
  slot.wr.send_flags |= IBV_SEND_SIGNALED;
  slot.pend(SlotHeader::kForced);
}

// Likewise the queue's next request, which is spared if one before it was forced not long ago.
__attribute__((always_inline)) inline void force_next(ShadowQp& qp, SendSlot& slot, ibv_wr_opcode opcode,
                                                      SlotHeader::Pending otherwise) {
  if (qp.send.head < qp.sparing.until && (qp.sparing.opcodes >> (opcode % 32) & 1) != 0)
    return slot.pend(SlotHeader::kSpared);
  if (__builtin_expect(qp.sparing.every != 0, 0)) return force_one_of_many(qp, slot);
  force(qp, slot, otherwise);
}

// Sets the status of the queue's next slot, whose request is in it. `may_force`: not on a short way that no queue
// pair with forced signals takes.
template <bool may_force, SlotHeader::Pending as>
__attribute__((always_inline)) inline void pend_next(ShadowQp& qp, SendSlot& slot, unsigned flags,
                                                     ibv_wr_opcode opcode) {
  if (may_force && (flags & IBV_SEND_SIGNALED) == 0)
    force_next(qp, slot, opcode, as);
  else
    slot.pend(as);
}

// Writes all of the request but its list into the slot, the queue's next. `may_force`: not on a short way that no
// queue pair with forced signals takes.
template <bool may_force = true>
__attribute__((always_inline)) inline void record(ShadowQp& qp, SendSlot& slot, const ibv_send_wr& wr) {
  slot.user_wr_id = wr.wr_id;
  ::memcpy(reinterpret_cast<char*>(&slot.wr) + kCopyFrom, reinterpret_cast<const char*>(&wr) + kCopyFrom,
           kCopyTo - kCopyFrom);
  pend_next<may_force, SlotHeader::kPlain>(qp, slot, wr.send_flags, wr.opcode);
}

// Before the request goes down: its completion may be polled before the backend's call returns.
__attribute__((always_inline)) inline void accept(ShadowQp& qp, ibv_wr_opcode opcode) {
  count_message(&qp.send.messages, opcode);
  ++qp.send.head;
}

// One request with one element, not inline: what programs post most.
inline bool is_plain(const ibv_send_wr& wr) {
  return wr.next == nullptr && wr.num_sge == 1 && (wr.send_flags & IBV_SEND_INLINE) == 0;
}

// Writes a plain request into the slot, which becomes the queue's last.
template <bool may_force = true>
__attribute__((always_inline)) inline void take_plain(ShadowQp& qp, SendSlot& slot, const ibv_send_wr& wr) {
  record<may_force>(qp, slot, wr);
  slot.list()[0] = wr.sg_list[0];
  accept(qp, wr.opcode);
}

// The slot for the next request, or null: the queue is full.
SendSlot* next_slot(ShadowQp& qp);
// Writes the whole request into that slot. 0 or the errno to refuse it with.
int record_any(ShadowQp& qp, SendSlot& slot, const ibv_send_wr& wr);
// The queue's last request is refused: takes it back.
void unaccept(ShadowQp& qp);

// One request or a list, of which a copy with turned ids goes down (post_turned.cc).
int post_send_translated(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
// Likewise, with a shorter way for one plain request.
int post_send_turned(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);

}  // namespace shadowib::posting
