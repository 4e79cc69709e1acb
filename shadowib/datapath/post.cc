#include <errno.h>
#include <stddef.h>
#include <string.h>

#include <algorithm>

#include "hooks/threads/stop.h"
#include "shadowib/base/guard.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/pieces.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

template <typename Wr>
int refuse(Wr* wr, Wr** bad, int error) {
  *bad = wr;
  return error;
}

// Copies inline data behind the slot's list, as one element: the program may reuse its buffers at once.
bool copy_inline(SendSlot& slot, const ibv_send_wr& wr, const WorkQueue<SendSlot>& queue) {
  char* to = reinterpret_cast<char*>(slot.list() + queue.max_sge());
  std::uint64_t total = 0;
  for (int i = 0; i < wr.num_sge; ++i) {
    total += wr.sg_list[i].length;
    if (total > queue.max_inline()) return false;
    ::memcpy(to + total - wr.sg_list[i].length, reinterpret_cast<void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
  }
  if (!guarded(Guard::kCopyInline)) to = reinterpret_cast<char*>(wr.sg_list[0].addr);
  slot.list()[0] = {reinterpret_cast<std::uint64_t>(to), static_cast<std::uint32_t>(total), 0};
  slot.wr.num_sge = total == 0 ? 0 : 1;
  return true;
}

// The part of a request that the offered opcodes use, behind wr_id, next and sg_list, which the slot has its own of.
constexpr std::size_t kCopyFrom = offsetof(ibv_send_wr, num_sge), kCopyTo = offsetof(ibv_send_wr, qp_type);
static_assert(kCopyFrom == 24 && kCopyTo == 72, "ibv_send_wr has another layout than rdma-core 44's");

// The slot for the next request, or null: the queue is full.
SendSlot* next_slot(ShadowQp& qp) {
  if (!qp.send.has_room()) {
    retire_executed(qp);
    // A program that wants no completion polls for none.
    if (qp.forces_signals && !qp.send.slot(qp.send.head).asked_for())
      drain_completions(*ShadowCq::of(qp.init.send_cq));
    if (!qp.send.has_room()) return nullptr;
  }
  return &qp.send.slot(qp.send.head);
}

// Pollers read the line of this word: it is written once, not by each request.
__attribute__((noinline, cold)) void begin_forcing(ShadowQp& qp) {
  ShadowCq::of(qp.init.send_cq)->has_forced.store(true, std::memory_order_relaxed);
  qp.forcing = ShadowQp::Forcing::kGoesOn;
}

// Has an unsignaled request that is in the slot signaled, if only a completion tells that it has run. The slot's
// status is set; `otherwise`: what it is if not.
__attribute__((always_inline)) inline void force(ShadowQp& qp, SendSlot& slot, SlotHeader::Pending otherwise) {
  if (qp.forcing == ShadowQp::Forcing::kNone) return slot.pend(otherwise);
  if (__builtin_expect(qp.forcing == ShadowQp::Forcing::kBegins, 0)) begin_forcing(qp);
  slot.wr.send_flags |= IBV_SEND_SIGNALED;
  slot.pend(SlotHeader::kForced);
}

// One-sided requests are spared only before any message.
__attribute__((noinline)) void choose_spared(ShadowQp& qp, ibv_wr_opcode opcode) {
  if (consumes_receive(opcode) || qp.send.messages != 0) {
    qp.sparing.opcodes = kConsumingReceive;
  } else {
    qp.sparing.opcodes = Sparing::kOneSided;
    qp.sparing.note_before_message();
  }
}

// The queue's next is forced, and what follows it may be spared: messages, or one-sided requests before any message.
__attribute__((noinline)) void force_one_of_many(ShadowQp& qp, SendSlot& slot) {
  Sparing& sparing = qp.sparing;
  sparing.until = qp.send.head + sparing.every;
  ++sparing.forced;
  if (sparing.opcodes == 0) choose_spared(qp, slot.wr.opcode);
  force(qp, slot, SlotHeader::kPlain);
}

// The same for the queue's next, which is spared if one before it was forced not long ago.
__attribute__((always_inline)) inline void force_next(ShadowQp& qp, SendSlot& slot, ibv_wr_opcode opcode,
                                                      SlotHeader::Pending otherwise) {
  if (qp.send.head < qp.sparing.until && (qp.sparing.opcodes >> (opcode % 32) & 1) != 0)
    return slot.pend(SlotHeader::kSpared);
  if (__builtin_expect(qp.sparing.every != 0, 0)) return force_one_of_many(qp, slot);
  force(qp, slot, otherwise);
}

bool has_message(const ibv_send_wr* wr) {
  while (wr != nullptr && !consumes_receive(wr->opcode)) wr = wr->next;
  return wr != nullptr;
}
// A message of the list needs a fence before it.
bool is_fence_due(const ShadowQp& qp, const ibv_send_wr* wr) {
  return qp.sparing.before_message() && has_message(wr);
}

// All but the list of a request with one element that is no atomic, nor a datagram's. Returns its opcode.
__attribute__((always_inline)) inline ibv_wr_opcode copy_pieces(ibv_send_wr& to, const ibv_send_wr& from) {
  to.num_sge = 1;
  const ibv_wr_opcode opcode = copy_piece(to.opcode, from.opcode);
  copy_piece(to.send_flags, from.send_flags);
  copy_piece(to.imm_data, from.imm_data);
  copy_piece(to.wr.rdma.remote_addr, from.wr.rdma.remote_addr);
  copy_piece(to.wr.rdma.rkey, from.wr.rdma.rkey);
  return opcode;
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

// The slot's request is refused. One that was to be forced would tell of those behind it: the next is forced instead.
void drop(ShadowQp& qp, SendSlot& slot) {
  if (slot.forced()) qp.sparing.until = 0;
  slot.release();
}

// The whole request. 0 or the errno to refuse it with.
int record_any(ShadowQp& qp, SendSlot& slot, const ibv_send_wr& wr) {
  if (static_cast<std::uint32_t>(wr.num_sge) > qp.send.max_sge()) return EINVAL;
  record(qp, slot, wr);
  slot.wr.qp_type = wr.qp_type;
  if (wr.opcode == IBV_WR_BIND_MW) {  // it has no list, in whose place it stands
    slot.wr.bind_mw = wr.bind_mw;
    slot.wr.num_sge = 0;
    return 0;
  }
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    if (copy_inline(slot, wr, qp.send)) return 0;
    drop(qp, slot);
    return EINVAL;
  }
  for (int i = 0; i < wr.num_sge; ++i) copy_element(slot.list()[i], wr.sg_list[i]);
  return 0;
}

// Before the request goes down: its completion may be polled before the backend's call returns.
__attribute__((always_inline)) inline void accept(ShadowQp& qp, ibv_wr_opcode opcode) {
  count_message(&qp.send.messages, opcode);
  ++qp.send.head;
}
void unaccept(ShadowQp& qp) {
  SendSlot& slot = qp.send.slot(--qp.send.head);
  if (changes_window(slot.wr.opcode)) qp.context->windows.forget_change(qp, qp.send.head, slot.wr);
  drop(qp, slot);
  qp.send.messages -= consumes_receive(slot.wr.opcode);
}

// 0, or the errno to refuse the request with.
int turn_destination(ibv_send_wr& wr) {
  if (wr.wr.ud.ah == nullptr) return 0;  // the backend refuses it
  const RealDestination to = resolve_destination(*ShadowAh::of(wr.wr.ud.ah), {wr.wr.ud.remote_qpn});
  if (__builtin_expect(to.ah == nullptr, 0)) return EIO;
  wr.wr.ud.ah = to.ah;
  wr.wr.ud.remote_qpn = to.number.value;
  return 0;
}

// The remote key that a request names, if it names one. 0, or the errno to refuse the request with.
int turn_remote_key(ShadowQp& qp, ibv_send_wr& wr) {
  const auto turn = [&qp](std::uint32_t& key) {
    RealKey real;
    const int rc = resolve_remote_key(qp, {key}, &real);
    key = real.value;
    return rc;
  };
  switch (wr.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
      return turn(wr.wr.rdma.rkey);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return turn(wr.wr.atomic.rkey);
    case IBV_WR_SEND_WITH_INV:
      return turn(wr.invalidate_rkey);
    default:
      return 0;
  }
}

// Requests with their keys turned into the real ones of this generation, to go down as one list: a backend may make
// one write to its wire of a list, and twenty of twenty requests.
class TurnedList {
 public:
  explicit TurnedList(ShadowQp& qp) : qp_(qp) {}
  int size() const { return count_; }
  // What asks for more elements than a queue pair may have is refused later and needs none. A bind says how the
  // window is known before it, which is one thing at a time.
  bool has_room_for(const ibv_send_wr& wr) const {
    return count_ < kRequests && elements_ + wr.num_sge <= kElements && (!binds_ || wr.opcode != IBV_WR_BIND_MW);
  }
  // 0, or the errno to refuse the request with, which is not in the list then.
  int add(std::uint64_t sequence) {
    SendSlot& slot = qp_.send.slot(sequence);
    ibv_send_wr& wr = requests_[count_];
    pend_again(slot);
    wr = slot.wr;
    wr.next = nullptr;
    wr.sg_list = list_ + elements_;
    turn_local_keys(*qp_.context, slot.list(), wr.num_sge, wr.sg_list);
    if (int rc = qp_.is_initiator() ? turn_remote_srq(wr) : 0; rc != 0) return rc;
    if (int rc = qp_.is_datagram() ? turn_destination(wr) : turn_keys(sequence, wr); rc != 0) return rc;
    elements_ += wr.num_sge;
    binds_ |= wr.opcode == IBV_WR_BIND_MW;
    if (count_ > 0) requests_[count_ - 1].next = &wr;
    ++count_;
    return 0;
  }
  // Posts and empties it. 0, or an errno with the number of those that were taken before it.
  int post(int* taken) {
    *taken = count_;
    if (count_ == 0) return 0;
    ibv_send_wr* bad = nullptr;
    int rc = qp_.real_post_send(qp_.real, requests_, &bad);
    if (rc != 0 && bad != nullptr)
      *taken = static_cast<int>(bad - requests_);  // no bad: a provider that took them all
    count_ = elements_ = 0;
    binds_ = false;
    return bad == nullptr ? 0 : rc;
  }

 private:
  // As this generation and this backend have it.
  void pend_again(SendSlot& slot) {
    slot.take_force_back();
    const SlotHeader::Pending as = is_set(qp_.context->translate) ? SlotHeader::kApart : SlotHeader::kPlain;
    if ((slot.wr.send_flags & IBV_SEND_SIGNALED) == 0)
      force(qp_, slot, as);
    else
      slot.pend(as);
  }
  int turn_remote_srq(ibv_send_wr& wr) {
    RealSrqNum real;
    const int rc = resolve_remote_srq(qp_, {wr.qp_type.xrc.remote_srqn}, &real);
    wr.qp_type.xrc.remote_srqn = real.value;
    return rc;
  }
  int turn_keys(std::uint64_t sequence, ibv_send_wr& wr) {
    if (!changes_window(wr.opcode)) return turn_remote_key(qp_, wr);
    qp_.context->windows.turn(qp_, sequence, &wr);
    return 0;
  }
  static constexpr int kRequests = 16, kElements = kMaxSge;
  ShadowQp& qp_;
  int count_ = 0, elements_ = 0;
  bool binds_ = false;
  ibv_send_wr requests_[kRequests];
  ibv_sge list_[kElements];
};

// Posts what is in the list, whose first request is `first` of the program. What was not taken is forgotten.
int flush_turned(ShadowQp& qp, TurnedList& list, ibv_send_wr* first, ibv_send_wr** bad_wr) {
  const int size = list.size();
  int taken = 0;
  const int rc = list.post(&taken);
  if (rc == 0) return 0;
  for (int i = taken; i < size; ++i) unaccept(qp);
  for (; taken > 0; --taken) first = first->next;
  return refuse(first, bad_wr, rc);
}

__attribute__((noinline)) int post_send_translated(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  TurnedList list(qp);
  ibv_send_wr* first = wr;  // of those in the list
  for (; wr != nullptr; wr = wr->next) {
    if (!list.has_room_for(*wr)) {
      if (int rc = flush_turned(qp, list, first, bad_wr); rc != 0) return rc;
      first = wr;
    }
    SendSlot* slot = next_slot(qp);
    const int refused = slot == nullptr ? ENOMEM : record_any(qp, *slot, *wr);
    if (refused != 0) {
      const int rc = flush_turned(qp, list, first, bad_wr);
      return rc != 0 ? rc : refuse(wr, bad_wr, refused);
    }
    if (changes_window(wr->opcode)) qp.context->windows.note_change(qp, qp.send.head, slot->wr);
    accept(qp, slot->wr.opcode);
    if (int unknown = list.add(qp.send.head - 1); unknown != 0) {
      unaccept(qp);
      const int rc = flush_turned(qp, list, first, bad_wr);
      return rc != 0 ? rc : refuse(wr, bad_wr, unknown);
    }
  }
  return flush_turned(qp, list, first, bad_wr);
}

// A list, or one that is not plain, in the way that the queue pair needs. Caller holds the queue's lock.
int post_send_turned(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int post_send_one(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int post_send_list(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
__attribute__((noinline)) int post_send_locked(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  if (is_fence_due(qp, wr))
    if (int rc = close_before_message(qp); rc != 0) return refuse(wr, bad_wr, rc);
  if (is_set(qp.translate)) return post_send_turned(qp, wr, bad_wr);
  return wr->next == nullptr ? post_send_one(qp, wr, bad_wr) : post_send_list(qp, wr, bad_wr);
}

// One request that is not the plain kind.
__attribute__((noinline)) int post_send_one(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  SendSlot* const slot = next_slot(qp);
  const int refused = slot == nullptr ? ENOMEM : record_any(qp, *slot, *wr);
  if (refused != 0) return refuse(wr, bad_wr, refused);
  accept(qp, slot->wr.opcode);
  ibv_send_wr* bad = nullptr;
  const int rc = qp.real_post_send(qp.real, &slot->wr, &bad);
  if (__builtin_expect(rc == 0 || bad == nullptr, 1)) return 0;  // rc and no bad: rxe, which took it
  unaccept(qp);
  return refuse(wr, bad_wr, rc);
}

// A list: slots are chained and go down in one call.
__attribute__((noinline)) int post_send_list(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  // Those that go down together are of one choice: no fence can come between them.
  if (qp.sparing.opcodes == 0 && has_message(wr)) qp.sparing.opcodes = kConsumingReceive;
  std::uint64_t first = qp.send.head;
  ibv_send_wr* at = wr;
  int refused = 0;
  for (; at != nullptr; at = at->next) {
    SendSlot* slot = next_slot(qp);
    refused = slot == nullptr ? ENOMEM : record_any(qp, *slot, *at);
    if (refused != 0) break;
    if (qp.send.head != first) qp.send.slot(qp.send.head - 1).wr.next = &slot->wr;
    accept(qp, slot->wr.opcode);
  }
  const std::uint64_t end = qp.send.head;
  if (end == first) return refuse(at, bad_wr, refused);
  ibv_send_wr* bad = nullptr;
  int rc = qp.real_post_send(qp.real, &qp.send.slot(first).wr, &bad);
  for (std::uint64_t s = first; s < end; ++s) qp.send.slot(s).wr.next = nullptr;
  if (rc != 0 && bad != nullptr) {  // rc != 0 and bad == nullptr: a provider that took them all (rxe)
    std::uint64_t accepted = first;
    for (at = wr; &qp.send.slot(accepted).wr != bad && accepted < end; ++accepted) at = at->next;
    while (qp.send.head > accepted) unaccept(qp);
    return refuse(at, bad_wr, rc);
  }
  return refused != 0 ? refuse(at, bad_wr, refused) : 0;
}

// The opcodes whose plain requests go the short way after a restart: without a remote key, or with one.
constexpr std::uint32_t kShortMessages = 1u << IBV_WR_SEND | 1u << IBV_WR_SEND_WITH_IMM;
constexpr std::uint32_t kShortRdma =
    1u << IBV_WR_RDMA_WRITE | 1u << IBV_WR_RDMA_WRITE_WITH_IMM | 1u << IBV_WR_RDMA_READ;
inline bool is_among(std::uint32_t opcodes, ibv_wr_opcode opcode) {
  return static_cast<unsigned>(opcode) < 32 && (opcodes >> static_cast<unsigned>(opcode) & 1) != 0;
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
// The same of one that goes a short way over a device: what takes a few instructions more, and less time.
template <SlotHeader::Pending as>
__attribute__((always_inline)) inline void take_short(ShadowQp& qp, SendSlot& slot, const ibv_send_wr& wr) {
  slot.user_wr_id = wr.wr_id;
  const ibv_wr_opcode opcode = copy_pieces(slot.wr, wr);
  copy_element(slot.list()[0], wr.sg_list[0]);
  count_message(&qp.send.messages, opcode);
  pend_next<true, as>(qp, slot, wr.send_flags, opcode);
  ++qp.send.head;
}

// A plain datagram: its destination needs turning always, its keys after a restart. What the program wrote is read
// once.
int post_datagram(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  SendSlot& slot = qp.send.slot(qp.send.head);
  ibv_send_wr& copy = slot.wr;
  ibv_send_wr turned;
  turned.wr.ud.ah = copy_piece(copy.wr.ud.ah, wr->wr.ud.ah);
  turned.wr.ud.remote_qpn = copy_piece(copy.wr.ud.remote_qpn, wr->wr.ud.remote_qpn);
  turned.wr.ud.remote_qkey = copy_piece(copy.wr.ud.remote_qkey, wr->wr.ud.remote_qkey);
  if (int rc = turn_destination(turned); rc != 0) return refuse(wr, bad_wr, rc);
  slot.user_wr_id = wr->wr_id;
  turned.wr_id = copy.wr_id;
  turned.next = nullptr;
  turned.num_sge = copy.num_sge = 1;
  turned.opcode = copy_piece(copy.opcode, wr->opcode);
  turned.imm_data = copy_piece(copy.imm_data, wr->imm_data);
  copy_piece(copy.send_flags, wr->send_flags);
  copy_element(slot.list()[0], wr->sg_list[0]);
  ibv_sge element;
  if (is_set(qp.context->translate)) {
    pend_next<true, SlotHeader::kApart>(qp, slot, wr->send_flags, turned.opcode);
    turn_local_keys(*qp.context, slot.list(), 1, &element);
    turned.sg_list = &element;
  } else {
    pend_next<true, SlotHeader::kPlain>(qp, slot, wr->send_flags, turned.opcode);
    turned.sg_list = slot.list();
  }
  turned.send_flags = copy.send_flags;
  accept(qp, turned.opcode);
  ibv_send_wr* bad = nullptr;
  const int rc = qp.real_post_send(qp.real, &turned, &bad);
  if (rc == 0 || bad == nullptr) return 0;
  unaccept(qp);
  return refuse(wr, bad_wr, rc);
}

// A plain request that needs turning: its keys after a restart or beside windows, a datagram's destination always.
// Others go the long way.
__attribute__((noinline)) int post_send_turned(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  if (!is_plain(*wr) || changes_window(wr->opcode) || qp.is_initiator() || !qp.send.has_room())
    return post_send_translated(qp, wr, bad_wr);
  if (qp.is_datagram()) return post_datagram(qp, wr, bad_wr);
  SendSlot& slot = qp.send.slot(qp.send.head);
  take_plain(qp, slot, *wr);
  ibv_send_wr turned;
  ibv_sge element;
  ::memcpy(&turned, &slot.wr, kCopyTo);
  if (is_set(qp.context->translate)) {
    if (!slot.forced()) slot.pend(SlotHeader::kApart);
    turn_local_keys(*qp.context, slot.list(), 1, &element);
    turned.sg_list = &element;
  }
  ibv_send_wr* bad = nullptr;
  int rc = turn_remote_key(qp, turned);
  if (rc == 0) {
    rc = qp.real_post_send(qp.real, &turned, &bad);
    if (rc == 0 || bad == nullptr) return 0;
  }
  unaccept(qp);
  return refuse(wr, bad_wr, rc);
}

// All that is not a plain request to a free queue before any restart.
__attribute__((noinline)) int post_send_any(ibv_qp* program_qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  Inside inside;
  ShadowQp& qp = *ShadowQp::of(program_qp);
  SpinGuard guard(qp.send.lock);
  return post_send_locked(qp, wr, bad_wr);
}

// Receives, one or a list, by the queue's lock.
int post_recv_locked(ShadowQp& qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  WorkQueue<RecvSlot>& queue = qp.receive;
  for (; wr != nullptr; wr = wr->next) {
    if (!queue.has_room()) return refuse(wr, bad_wr, ENOMEM);
    if (static_cast<std::uint32_t>(wr->num_sge) > queue.max_sge()) return refuse(wr, bad_wr, EINVAL);
    RecvSlot& slot = queue.slot(queue.head);
    slot.user_wr_id = wr->wr_id;
    slot.wr.num_sge = wr->num_sge;
    for (int i = 0; i < wr->num_sge; ++i) copy_element(slot.list()[i], wr->sg_list[i]);
    ++queue.head;
    if (int rc = repost_receives(qp, queue.head - 1); rc != 0) {
      queue.slot(--queue.head).release();
      return refuse(wr, bad_wr, rc);
    }
  }
  return 0;
}

// A list, or a receive that is not the plain kind.
__attribute__((noinline)) int post_recv_any(ibv_qp* program_qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  Inside inside;
  ShadowQp& qp = *ShadowQp::of(program_qp);
  SpinGuard guard(qp.receive.lock);
  return post_recv_locked(qp, wr, bad_wr);
}

// The ends of the hot functions that are seldom taken. Each is the last call of its function.

// The queue is locked by another thread.
__attribute__((noinline, cold)) int post_send_again(ShadowQp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  if (leave_inside()) park_if_requested();
  return post_send_any(&qp->qp.qp_base, wr, bad_wr);
}
__attribute__((noinline, cold)) int post_recv_again(ShadowQp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  if (leave_inside()) park_if_requested();
  return post_recv_any(&qp->qp.qp_base, wr, bad_wr);
}

// The short way is closed, or the next slot is not free. Has the queue's lock.
__attribute__((noinline)) int post_send_long(ShadowQp* qp, ibv_send_wr* wr,
                                             ibv_send_wr** bad_wr) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  const int rc = post_send_locked(*qp, wr, bad_wr);
  qp->send.lock.unlock();
  if (leave_inside()) park_if_requested();
  return rc;
}
__attribute__((noinline)) int post_recv_long(ShadowQp* qp, ibv_recv_wr* wr,
                                             ibv_recv_wr** bad_wr) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  const int rc = post_recv_locked(*qp, wr, bad_wr);
  qp->receive.lock.unlock();
  if (leave_inside()) park_if_requested();
  return rc;
}

// The backend has answered a short post with an error, or somebody sleeps for the lock, which this thread has.
__attribute__((noinline, cold)) int end_send(ShadowQp* qp, int answer) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  WorkQueue<SendSlot>& queue = qp->send;
  int rc = SpinLock::answer_of(answer);
  if (rc != 0 && *queue.posting_bad == &queue.slot(queue.head - 1).wr) {
    *queue.posting_bad = queue.posting;
    unaccept(*qp);
  } else {
    rc = 0;  // an error and nothing that is bad: taken all the same, by rxe
  }
  queue.lock.unlock();
  if (leave_inside()) park_if_requested();
  return rc;
}
__attribute__((noinline, cold)) int end_recv(ShadowQp* qp, int answer) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  WorkQueue<RecvSlot>& queue = qp->receive;
  const int rc = SpinLock::answer_of(answer);
  if (rc != 0) {
    *queue.posting_bad = queue.posting;
    queue.slot(--queue.head).release();
  }
  queue.lock.unlock();
  if (leave_inside()) park_if_requested();
  return rc;
}
__attribute__((noinline, cold)) int parked() {
  park_if_requested();
  return 0;
}

// Compilers keep no address within the queue pair over the backend's call: that takes another register than the one.
inline void forget_addresses(ShadowQp** qp) { asm volatile("" : "+r"(*qp)); }

// The short way makes no call but the backend's, and saves one register for it. What it seldom needs is a function
// that it ends with. What that needs of the program's call stands in the queue.
template <bool may_force>
__attribute__((always_inline)) inline int post_send_short(ibv_qp* program_qp, ibv_send_wr* wr,
                                                          ibv_send_wr** bad_wr) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  if (__builtin_expect(!is_plain(*wr), 0)) return post_send_any(program_qp, wr, bad_wr);
  ShadowQp* qp = ShadowQp::of(program_qp);
  enter_inside();  // before the first look: a restart may come before it
  if (!qp->send.lock.lock_now()) return post_send_again(qp, wr, bad_wr);
  SendSlot& slot = qp->send.short_slot();
  if (__builtin_expect(may_force ? !qp->send.may_take(slot) : !slot.is_free(), 0) ||
      (may_force && (qp->sparing.long_way >> (wr->opcode % 32) & 1) != 0))
    return post_send_long(qp, wr, bad_wr);
  qp->send.posting = wr;
  qp->send.posting_bad = bad_wr;
  if (may_force) {
    take_short<SlotHeader::kPlain>(*qp, slot, *wr);
    qp->send.prefetch_behind(slot);
  } else {
    take_plain<false>(*qp, slot, *wr);
  }
  // Read back, since what forces seldom would have each call save it.
  int rc = qp->real_post_send(qp->real, &slot.wr, may_force ? qp->send.posting_bad : bad_wr);
  forget_addresses(&qp);
  if (qp->send.lock.add_sleepers(&rc)) return end_send(qp, rc);
  qp->send.lock.unlock_unslept();
  return leave_inside() ? parked() : rc;
}

}  // namespace

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) { return post_send_short<true>(qp, wr, bad_wr); }
int post_send_unforced(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  return post_send_short<false>(qp, wr, bad_wr);
}

namespace {

template <bool device>
__attribute__((always_inline)) inline int post_recv_short(ibv_qp* program_qp, ibv_recv_wr* wr,
                                                          ibv_recv_wr** bad_wr) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  if (__builtin_expect(wr->next != nullptr || wr->num_sge != 1, 0)) return post_recv_any(program_qp, wr, bad_wr);
  ShadowQp* qp = ShadowQp::of(program_qp);
  enter_inside();
  if (!qp->receive.lock.lock_now()) return post_recv_again(qp, wr, bad_wr);
  RecvSlot& slot = qp->receive.short_slot();
  if (__builtin_expect(!slot.is_free(), 0)) return post_recv_long(qp, wr, bad_wr);
  qp->receive.posting = wr;
  qp->receive.posting_bad = bad_wr;
  slot.user_wr_id = wr->wr_id;
  slot.pend(SlotHeader::kPlain);
  slot.wr.num_sge = 1;
  if (device)
    copy_element(slot.list()[0], wr->sg_list[0]);
  else
    slot.list()[0] = wr->sg_list[0];
  ++qp->receive.head;
  int rc = qp->real_post_recv(qp->real, &slot.wr, bad_wr);
  forget_addresses(&qp);
  if (qp->receive.lock.add_sleepers(&rc)) return end_recv(qp, rc);
  qp->receive.lock.unlock_unslept();
  return leave_inside() ? parked() : rc;
}

}  // namespace

int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) { return post_recv_short<true>(qp, wr, bad_wr); }
int post_recv_unforced(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  return post_recv_short<false>(qp, wr, bad_wr);
}

namespace {

// A key of the program's in the slot's copy, which is the real one while the copy goes down: the backend keeps no
// request beyond the call, and the slot is used again by nobody but who has the queue's lock.
class TurnedKey {
 public:
  __attribute__((always_inline)) TurnedKey(std::uint32_t& key, RealKey real) : key_(key), virtual_(key) {
    key = real.value;
  }
  __attribute__((always_inline)) ~TurnedKey() { key_ = virtual_; }
  TurnedKey(const TurnedKey&) = delete;
  TurnedKey& operator=(const TurnedKey&) = delete;

 private:
  std::uint32_t& key_;
  const std::uint32_t virtual_;
};

__attribute__((always_inline)) inline RealKey local_key(const ShadowQp& qp, const ibv_sge& element) {
  RealKey real;
  (void)qp.context->keys.find({element.lkey}, &real);
  return real;
}

__attribute__((always_inline)) inline int leave_send(ShadowQp* qp, int rc) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  if (qp->send.lock.add_sleepers(&rc)) return end_send(qp, rc);
  qp->send.lock.unlock_unslept();
  return leave_inside() ? parked() : rc;
}

// One-sided: has the queue's lock. A remote key that is not known yet is asked for on the long way.
__attribute__((noinline)) int post_rdma_turning(ShadowQp* qp, SendSlot* slot, ibv_send_wr* wr,
                                                ibv_send_wr** bad_wr) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  RealKey real;
  if (qp->remote_keys == nullptr || !qp->remote_keys->keys.find({wr->wr.rdma.rkey}, &real))
    return post_send_long(qp, wr, bad_wr);
  take_short<SlotHeader::kApart>(*qp, *slot, *wr);
  int rc = 0;
  {
    const TurnedKey local(slot->list()[0].lkey, local_key(*qp, slot->list()[0])), remote(slot->wr.wr.rdma.rkey, real);
    rc = qp->real_post_send(qp->real, &slot->wr, bad_wr);
  }
  return leave_send(qp, rc);
}

}  // namespace

int post_send_turning(ibv_qp* program_qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  if (__builtin_expect(!is_plain(*wr) || !is_among(kShortMessages | kShortRdma, wr->opcode), 0))
    return post_send_any(program_qp, wr, bad_wr);
  ShadowQp* qp = ShadowQp::of(program_qp);
  enter_inside();
  if (!qp->send.lock.lock_now()) return post_send_again(qp, wr, bad_wr);
  SendSlot& slot = qp->send.slot(qp->send.head);
  if (__builtin_expect(!slot.is_free() || qp->sparing.before_message() || qp->needs_turning(), 0))
    return post_send_long(qp, wr, bad_wr);
  qp->send.posting = wr;
  qp->send.posting_bad = bad_wr;
  if (!is_among(kShortMessages, wr->opcode)) return post_rdma_turning(qp, &slot, wr, bad_wr);
  take_short<SlotHeader::kApart>(*qp, slot, *wr);
  int rc = 0;
  {
    const TurnedKey local(slot.list()[0].lkey, local_key(*qp, slot.list()[0]));
    rc = qp->real_post_send(qp->real, &slot.wr, qp->send.posting_bad);
  }
  return leave_send(qp, rc);
}

int post_recv_turning(ibv_qp* program_qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
  if (__builtin_expect(wr->next != nullptr || wr->num_sge != 1, 0)) return post_recv_any(program_qp, wr, bad_wr);
  ShadowQp* qp = ShadowQp::of(program_qp);
  enter_inside();
  if (!qp->receive.lock.lock_now()) return post_recv_again(qp, wr, bad_wr);
  RecvSlot& slot = qp->receive.slot(qp->receive.head);
  if (__builtin_expect(!slot.is_free(), 0)) return post_recv_long(qp, wr, bad_wr);
  qp->receive.posting = wr;
  qp->receive.posting_bad = bad_wr;
  slot.user_wr_id = wr->wr_id;
  slot.pend(SlotHeader::kApart);
  slot.wr.num_sge = 1;
  copy_element(slot.list()[0], wr->sg_list[0]);
  ++qp->receive.head;
  int rc = 0;
  {
    const TurnedKey local(slot.list()[0].lkey, local_key(*qp, slot.list()[0]));
    rc = qp->real_post_recv(qp->real, &slot.wr, bad_wr);
  }
  if (qp->receive.lock.add_sleepers(&rc)) return end_recv(qp, rc);
  qp->receive.lock.unlock_unslept();
  return leave_inside() ? parked() : rc;
}

int post_send_whole(ShadowQp& qp, ibv_send_wr* wr, std::size_t count) {
  ibv_send_wr* bad = nullptr;
  if (count == 1) return post_send(&qp.qp.qp_base, wr, &bad);  // whole as it is, and if there is no room, none
  Inside inside;
  SpinGuard guard(qp.send.lock);
  const auto fits = [&] {
    const std::uint64_t executed = retire_executed(qp);
    return qp.send.head - executed + count <= qp.real_cap.max_send_wr && qp.send.has_room_for(count);
  };
  if (!fits()) {
    if (!qp.forces_signals) return ENOMEM;
    drain_completions(*ShadowCq::of(qp.init.send_cq));
    if (!fits()) return ENOMEM;
  }
  if (is_fence_due(qp, wr))
    if (int rc = close_before_message(qp); rc != 0) return rc;
  return is_set(qp.translate) ? post_send_translated(qp, wr, &bad) : post_send_list(qp, wr, &bad);
}

int repost_receives(ShadowQp& qp, std::uint64_t from) {
  WorkQueue<RecvSlot>& queue = qp.receive;
  for (std::uint64_t s = from; s < queue.head; ++s) {
    RecvSlot& slot = queue.slot(s);
    slot.pend(is_set(qp.translate_receives) ? SlotHeader::kApart : SlotHeader::kPlain);
    ibv_recv_wr wr = slot.wr;
    ibv_sge list[kMaxSge];
    wr.sg_list = list;
    turn_local_keys(*qp.context, slot.list(), wr.num_sge, list);
    ibv_recv_wr* bad = nullptr;
    if (int rc = qp.real_post_recv(qp.real, &wr, &bad); rc != 0) return rc;
  }
  return 0;
}

int repost_sends(ShadowQp& qp, std::uint64_t from) {
  TurnedList list(qp);
  int taken = 0;
  for (std::uint64_t s = from; s < qp.send.head; ++s) {
    if (!list.has_room_for(qp.send.slot(s).wr))
      if (int rc = list.post(&taken); rc != 0) return rc;
    if (int rc = list.add(s); rc != 0) return rc;
  }
  return list.post(&taken);
}

namespace {

// The send sequence before which the backend has executed everything with success, or 0 if it does not say.
std::uint64_t known_executed(ShadowQp& qp) {
  if (g_backend.sq_executed == nullptr || qp.real == nullptr) return 0;
  const std::uint64_t known = qp.executed_base + g_backend.sq_executed(qp.real);
  return known <= qp.send.head ? known : 0;
}

}  // namespace

std::uint64_t executed_frontier(ShadowQp& qp) {
  return std::max({qp.send.retired(), known_executed(qp), qp.sparing.proven});
}

std::uint64_t retire_executed(ShadowQp& qp) {
  const std::uint64_t known = std::max(known_executed(qp), qp.sparing.proven);
  for (std::uint64_t s = qp.send.tail(); s < known; s = qp.send.tail()) {
    SendSlot& slot = qp.send.slot(s);
    if (slot.signaled() && !slot.done()) break;  // its completion still points at the slot
    qp.send.retire_to(s + 1);
  }
  return executed_frontier(qp);
}

}  // namespace shadowib
