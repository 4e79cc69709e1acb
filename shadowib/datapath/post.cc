#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "hooks/stop.h"
#include "shadowib/datapath/datapath.h"
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
  char* to = reinterpret_cast<char*>(slot.sge + queue.max_sge());
  std::uint64_t total = 0;
  for (int i = 0; i < wr.num_sge; ++i) {
    total += wr.sg_list[i].length;
    if (total > queue.max_inline()) return false;
    ::memcpy(to + total - wr.sg_list[i].length, reinterpret_cast<void*>(wr.sg_list[i].addr), wr.sg_list[i].length);
  }
  slot.sge[0] = {reinterpret_cast<std::uint64_t>(to), static_cast<std::uint32_t>(total), 0};
  slot.wr.num_sge = total == 0 ? 0 : 1;
  return true;
}

// Copies a scatter/gather list; one element is by far the commonest.
inline void copy_list(ibv_sge* to, const ibv_sge* from, int count) {
  if (__builtin_expect(count == 1, 1)) {
    to[0] = from[0];
    return;
  }
  for (int i = 0; i < count; ++i) to[i] = from[i];
}

// The part of a request that RC opcodes use, behind wr_id, next and sg_list, which the slot has its own of.
constexpr std::size_t kCopyFrom = offsetof(ibv_send_wr, num_sge), kCopyTo = offsetof(ibv_send_wr, qp_type);
static_assert(kCopyFrom == 24 && kCopyTo == 72, "ibv_send_wr has another layout than rdma-core 44's");

// Writes the request into the next slot. 0 or the errno to refuse it with.
__attribute__((always_inline)) inline int record(ShadowQp& qp, const ibv_send_wr& wr) {
  WorkQueue<SendSlot>& queue = qp.send;
  if (__builtin_expect(!queue.has_room(), 0)) {
    retire_executed(qp);
    if (!queue.has_room()) return ENOMEM;
  }
  if (__builtin_expect(static_cast<std::uint32_t>(wr.num_sge) > queue.max_sge(), 0)) return EINVAL;
  SendSlot& slot = queue.slot(queue.head);
  slot.user_wr_id = wr.wr_id;
  slot.sequence = queue.head;
  slot.message = qp.messages_sent;
  slot.done = false;
  slot.signaled = ((wr.send_flags | qp.signal_flags) & IBV_SEND_SIGNALED) != 0;
  ::memcpy(reinterpret_cast<char*>(&slot.wr) + kCopyFrom, reinterpret_cast<const char*>(&wr) + kCopyFrom,
           kCopyTo - kCopyFrom);
  slot.wr.wr_id = reinterpret_cast<std::uint64_t>(static_cast<SlotHeader*>(&slot));
  slot.wr.next = nullptr;
  slot.wr.sg_list = slot.sge;
  if (__builtin_expect(wr.send_flags & IBV_SEND_INLINE, 0)) {
    if (!copy_inline(slot, wr, queue)) return EINVAL;
  } else {
    copy_list(slot.sge, wr.sg_list, wr.num_sge);
  }
  return 0;
}

inline void accept(ShadowQp& qp, const SendSlot& slot) {
  qp.messages_sent += consumes_receive(slot.wr.opcode);
  ++qp.send.head;
}
inline void unaccept(ShadowQp& qp) {
  --qp.send.head;
  qp.messages_sent = qp.send.slot(qp.send.head).message;
}

// Posts one slot with its keys turned into the real ones of this generation.
int post_slot_translated(ShadowQp& qp, SendSlot& slot) {
  ibv_send_wr wr = slot.wr;
  wr.next = nullptr;
  ibv_sge list[64];
  wr.sg_list = list;
  for (int i = 0; i < wr.num_sge; ++i) {
    list[i] = slot.sge[i];
    RealKey real;
    qp.context->keys.find({list[i].lkey}, &real);
    list[i].lkey = real.value;
  }
  if (wr.opcode == IBV_WR_RDMA_WRITE || wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wr.opcode == IBV_WR_RDMA_READ)
    wr.wr.rdma.rkey = resolve_remote_key(qp, {wr.wr.rdma.rkey}).value;
  else if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
    wr.wr.atomic.rkey = resolve_remote_key(qp, {wr.wr.atomic.rkey}).value;
  ibv_send_wr* bad = nullptr;
  int rc = qp.real_post_send(qp.real, &wr, &bad);
  return bad == nullptr ? 0 : rc;
}

__attribute__((noinline)) int post_send_translated(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  for (; wr != nullptr; wr = wr->next) {
    if (int rc = record(qp, *wr); rc != 0) return refuse(wr, bad_wr, rc);
    SendSlot& slot = qp.send.slot(qp.send.head);
    accept(qp, slot);
    if (int rc = post_slot_translated(qp, slot); rc != 0) {
      unaccept(qp);
      return refuse(wr, bad_wr, rc);
    }
  }
  return 0;
}

// A list: slots are chained and go down in one call.
__attribute__((noinline)) int post_send_list(ShadowQp& qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  std::uint64_t first = qp.send.head;
  ibv_send_wr* at = wr;
  int refused = 0;
  for (; at != nullptr && refused == 0; at = at->next) {
    refused = record(qp, *at);
    if (refused != 0) break;
    if (qp.send.head != first) qp.send.slot(qp.send.head - 1).wr.next = &qp.send.slot(qp.send.head).wr;
    accept(qp, qp.send.slot(qp.send.head));
  }
  if (qp.send.head == first) return refuse(at, bad_wr, refused);
  ibv_send_wr* bad = nullptr;
  int rc = qp.real_post_send(qp.real, &qp.send.slot(first).wr, &bad);
  if (rc != 0 && bad != nullptr) {  // rc != 0 and bad == nullptr: a provider that took them all (rxe)
    std::uint64_t accepted = first;
    for (at = wr; &qp.send.slot(accepted).wr != bad && accepted < qp.send.head; ++accepted) at = at->next;
    while (qp.send.head > accepted) unaccept(qp);
    return refuse(at, bad_wr, rc);
  }
  return refused != 0 ? refuse(at, bad_wr, refused) : 0;
}

}  // namespace

int post_send(ibv_qp* program_qp, ibv_send_wr* wr, ibv_send_wr** bad_wr) {
  Inside inside;
  ShadowQp& qp = *ShadowQp::of(program_qp);
  SpinGuard guard(qp.send.lock);
  if (__builtin_expect(qp.context->translate.load(std::memory_order_relaxed), 0))
    return post_send_translated(qp, wr, bad_wr);
  if (__builtin_expect(wr->next != nullptr, 0)) return post_send_list(qp, wr, bad_wr);
  if (int rc = record(qp, *wr); __builtin_expect(rc != 0, 0)) return refuse(wr, bad_wr, rc);
  SendSlot& slot = qp.send.slot(qp.send.head);
  accept(qp, slot);
  ibv_send_wr* bad = nullptr;
  int rc = qp.real_post_send(qp.real, &slot.wr, &bad);
  if (__builtin_expect(rc != 0 && bad != nullptr, 0)) {
    unaccept(qp);
    return refuse(wr, bad_wr, rc);
  }
  return 0;
}

namespace {

// Writes the receive into the next slot and posts it. 0 or the errno to refuse it with.
__attribute__((always_inline)) inline int post_one_receive(ShadowQp& qp, WorkQueue<RecvSlot>& queue,
                                                           const ibv_recv_wr& wr) {
  if (__builtin_expect(!queue.has_room(), 0)) return ENOMEM;
  if (__builtin_expect(static_cast<std::uint32_t>(wr.num_sge) > queue.max_sge(), 0)) return EINVAL;
  RecvSlot& slot = queue.slot(queue.head);
  slot.user_wr_id = wr.wr_id;
  slot.sequence = queue.head;
  slot.done = false;
  slot.wr = {reinterpret_cast<std::uint64_t>(static_cast<SlotHeader*>(&slot)), nullptr, slot.sge, wr.num_sge};
  copy_list(slot.sge, wr.sg_list, wr.num_sge);
  ++queue.head;
  ibv_recv_wr* bad = nullptr;
  int rc;
  if (__builtin_expect(qp.context->translate.load(std::memory_order_relaxed), 0)) {
    rc = repost_receives(qp, queue.head - 1);
    bad = &slot.wr;
  } else {
    rc = qp.real_post_recv(qp.real, &slot.wr, &bad);
  }
  if (__builtin_expect(rc != 0 && bad != nullptr, 0)) {
    --queue.head;
    return rc;
  }
  return 0;
}

}  // namespace

int post_recv(ibv_qp* program_qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  Inside inside;
  ShadowQp& qp = *ShadowQp::of(program_qp);
  WorkQueue<RecvSlot>& queue = qp.receive->log;
  SpinGuard guard(queue.lock);
  do {
    if (int rc = post_one_receive(qp, queue, *wr); __builtin_expect(rc != 0, 0)) return refuse(wr, bad_wr, rc);
    wr = wr->next;
  } while (__builtin_expect(wr != nullptr, 0));
  return 0;
}

int repost_receives(ShadowQp& qp, std::uint64_t from) {
  WorkQueue<RecvSlot>& queue = qp.receive->log;
  for (std::uint64_t s = from; s < queue.head; ++s) {
    RecvSlot& slot = queue.slot(s);
    ibv_recv_wr wr = slot.wr;
    ibv_sge list[64];
    wr.sg_list = list;
    for (int i = 0; i < wr.num_sge; ++i) {
      list[i] = slot.sge[i];
      RealKey real;
      qp.context->keys.find({list[i].lkey}, &real);
      list[i].lkey = real.value;
    }
    ibv_recv_wr* bad = nullptr;
    if (int rc = qp.real_post_recv(qp.real, &wr, &bad); rc != 0 && bad != nullptr) return rc;
  }
  return 0;
}

int repost_sends(ShadowQp& qp, std::uint64_t from) {
  for (std::uint64_t s = from; s < qp.send.head; ++s)
    if (int rc = post_slot_translated(qp, qp.send.slot(s)); rc != 0) return rc;
  return 0;
}

std::uint64_t executed_frontier(ShadowQp& qp) {
  std::uint64_t frontier = qp.send.retired();
  if (g_backend.sq_executed == nullptr || qp.real == nullptr) return frontier;
  std::uint64_t known = qp.executed_base + g_backend.sq_executed(qp.real);
  return known > frontier && known <= qp.send.head ? known : frontier;
}

void retire_executed(ShadowQp& qp) {
  std::uint64_t executed = executed_frontier(qp);
  while (qp.send.tail < executed) {
    SendSlot& slot = qp.send.slot(qp.send.tail);
    if (slot.signaled && !slot.done) break;  // its completion still points at the slot
    qp.send.retire_to(qp.send.tail + 1);
  }
}

}  // namespace shadowib
