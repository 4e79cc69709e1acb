// Requests of which a copy with turned ids goes down: lists after a restart; always datagrams, XRC, windows.
#include <errno.h>
#include <string.h>

#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/pieces.h"
#include "shadowib/datapath/posting.h"

namespace shadowib {
using namespace posting;
namespace {

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

}  // namespace

__attribute__((noinline)) int posting::post_send_translated(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
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

namespace {

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

}  // namespace

// A plain request that needs turning: its keys after a restart or beside windows, a datagram's destination always.
// Others go the long way.
__attribute__((noinline)) int posting::post_send_turned(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
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

}  // namespace shadowib
