#include "shadowib/objects/fence.h"

#include <errno.h>

#include <algorithm>
#include <utility>

#include "shadowib/objects/queue_pair.h"

namespace shadowib {

ibv_send_wr fence_request(ibv_mw* window) {
  static ibv_mr nothing{};  // some libraries read its key, of a bind to no bytes as well
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.bind_mw = {window, window->rkey, {&nothing, 0, 0, 0}};
  return wr;
}

int post_fence(ShadowQp& qp, Fence& fence) {
  ibv_mw* const window = ShadowPd::of(qp.qp.qp_base.pd)->fence;
  if (fence.pending()) return EBUSY;
  if (qp.sparing.room == 0 || window == nullptr) return EOPNOTSUPP;
  ibv_send_wr wr = fence_request(window), *bad = nullptr;
  wr.wr_id = reinterpret_cast<std::uint64_t>(&fence.slot);
  ShadowCq::of(qp.init.send_cq)->has_forced.store(true, std::memory_order_relaxed);
  fence.slot.qp_num = qp.qp_num;
  fence.slot.pend(SlotHeader::kFence);
  const std::uint64_t before = std::exchange(fence.at, qp.send.head);
  const int rc = qp.real_post_send(qp.real, &wr, &bad);
  if (rc == 0 || bad == nullptr) return 0;  // an error and nothing that is bad: taken all the same, by rxe
  fence.at = before;
  fence.slot.release();
  return rc;
}

int close_before_message(ShadowQp& qp) {
  if (qp.send.head > 0 && is_spared(qp, qp.send.head - 1))
    if (int rc = post_fence(qp, qp.sparing.of_message); rc != 0) return rc;
  qp.sparing.forget_before_message();
  qp.sparing.opcodes = kConsumingReceive;
  qp.sparing.until = 0;
  return 0;
}

void note_fences(ShadowQp& qp) {
  for (const Fence* fence : {&qp.sparing.of_checkpoint, &qp.sparing.of_message})
    if (!fence->pending()) qp.sparing.proven = std::max(qp.sparing.proven, fence->at);
}

bool is_spared(ShadowQp& qp, std::uint64_t sequence) {
  if (!qp.forces_signals || qp.sparing.room == 0 || sequence >= qp.send.head) return false;
  const SendSlot& slot = qp.send.slot(sequence);
  return !slot.signaled() && !slot.done();
}

}  // namespace shadowib
