// Receives posted to a shared receive queue.
#include <errno.h>

#include "hooks/threads/stop.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/pieces.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

inline int post_real(ShadowSrq& srq, ibv_recv_wr* wr) {
  ibv_recv_wr* bad = nullptr;
  return g_backend.post_srq_recv(srq.real, wr, &bad);
}

__attribute__((noinline)) int post_translated(ShadowSrq& srq, const RecvSlot& slot) {
  ibv_recv_wr wr = slot.wr;
  ibv_sge list[kMaxSge];
  wr.sg_list = list;
  turn_local_keys(*srq.context, slot.list(), wr.num_sge, list);
  return post_real(srq, &wr);
}

inline int post_slot(ShadowSrq& srq, RecvSlot& slot) {
  return __builtin_expect(is_set(srq.context->translate), 0) ? post_translated(srq, slot) : post_real(srq, &slot.wr);
}

int accept(ShadowSrq& srq, const ibv_recv_wr& wr) {
  if (static_cast<std::uint32_t>(wr.num_sge) > srq.log.max_sge()) return EINVAL;
  RecvSlot* slot = srq.log.take();
  if (slot == nullptr) return ENOMEM;
  slot->user_wr_id = wr.wr_id;
  slot->wr.num_sge = wr.num_sge;
  for (int i = 0; i < wr.num_sge; ++i) copy_element(slot->list()[i], wr.sg_list[i]);
  int rc = post_slot(srq, *slot);
  if (rc != 0) slot->release();
  return rc;
}

}  // namespace

int post_srq_recv(ibv_srq* program, ibv_recv_wr* wr, ibv_recv_wr** bad_wr) {
  Inside inside;
  ShadowSrq& srq = *ShadowSrq::of(program);
  SpinGuard guard(srq.log.lock);
  for (; wr != nullptr; wr = wr->next)
    if (int rc = accept(srq, *wr); rc != 0) {
      *bad_wr = wr;
      return rc;
    }
  return 0;
}

int repost_shared_receives(ShadowSrq& srq) {
  for (RecvSlot* slot : srq.log.pending())
    if (int rc = post_slot(srq, *slot); rc != 0) return rc;
  return 0;
}

}  // namespace shadowib
