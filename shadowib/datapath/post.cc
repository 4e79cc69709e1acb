// Posts: the short ways, before a restart and after it, and requests that go down as they are.
#include <errno.h>
#include <string.h>

#include <algorithm>

#include "hooks/threads/stop.h"
#include "shadowib/base/guard.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/pieces.h"
#include "shadowib/datapath/posting.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
using namespace posting;
namespace {

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

// One-sided requests are spared only before any message.
__attribute__((noinline)) void choose_spared(ShadowQp& qp, ibv_wr_opcode opcode) {
  if (consumes_receive(opcode) || qp.send.messages != 0) {
    qp.sparing.opcodes = kConsumingReceive;
  } else {
    qp.sparing.opcodes = Sparing::kOneSided;
    qp.sparing.note_before_message();
  }
}

bool has_message(const ibv_send_wr* wr) {
  while (wr != nullptr && !consumes_receive(wr->opcode)) wr = wr->next;
  return wr != nullptr;
}
// A message of the list needs a fence before it.
bool is_fence_due(const ShadowQp& qp, const ibv_send_wr* wr) {
  return qp.sparing.before_message() && has_message(wr);
}

// The slot's request is refused. One that was to be forced would tell of those behind it: the next is forced instead.
void drop(ShadowQp& qp, SendSlot& slot) {
  if (slot.forced()) qp.sparing.until = 0;
  slot.release();
}

}  // namespace

SendSlot* posting::next_slot(ShadowQp& qp) {
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
__attribute__((noinline, cold)) void posting::begin_forcing(ShadowQp& qp) {
  ShadowCq::of(qp.init.send_cq)->has_forced.store(true, std::memory_order_relaxed);
  qp.forcing = ShadowQp::Forcing::kGoesOn;
}

__attribute__((noinline)) void posting::force_one_of_many(ShadowQp& qp, SendSlot& slot) {
  Sparing& sparing = qp.sparing;
  sparing.until = qp.send.head + sparing.every;
  ++sparing.forced;
  if (sparing.opcodes == 0) choose_spared(qp, slot.wr.opcode);
  force(qp, slot, SlotHeader::kPlain);
}

int posting::record_any(ShadowQp& qp, SendSlot& slot, const ibv_send_wr& wr) {
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

void posting::unaccept(ShadowQp& qp) {
  SendSlot& slot = qp.send.slot(--qp.send.head);
  if (changes_window(slot.wr.opcode)) qp.context->windows.forget_change(qp, qp.send.head, slot.wr);
  drop(qp, slot);
  qp.send.messages -= consumes_receive(slot.wr.opcode);
}

namespace {

// A list, or one that is not plain, in the way that the queue pair needs. Caller holds the queue's lock.
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

// The opcodes whose plain requests go the short way after a restart: without a remote key, or with one.
constexpr std::uint32_t kShortMessages = 1u << IBV_WR_SEND | 1u << IBV_WR_SEND_WITH_IMM;
constexpr std::uint32_t kShortRdma =
    1u << IBV_WR_RDMA_WRITE | 1u << IBV_WR_RDMA_WRITE_WITH_IMM | 1u << IBV_WR_RDMA_READ;
inline bool is_among(std::uint32_t opcodes, ibv_wr_opcode opcode) {
  return static_cast<unsigned>(opcode) < 32 && (opcodes >> static_cast<unsigned>(opcode) & 1) != 0;
}

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
