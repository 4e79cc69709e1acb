// Retries that run out while threads are stopped (H20). An adapter sends to a peer that is not ready to receive for
// as long as the program has allowed, and then gives up; but the peer's program could not make it ready. So a queue
// pair that had settled as waiting for such a peer, and is in error now, begins anew: nothing of what it holds has
// run, and its peer knows nothing of it. ib2tcp counts no retries meanwhile (BackendOps::set_paused).
#include <algorithm>

#include "shadowib/base/guard.h"
#include "shadowib/base/log.h"
#include "shadowib/cr/participant.h"
#include "shadowib/cr/rebuild.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

bool is_in_error(ShadowQp& qp) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  return g_backend.query_qp(qp.real, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR;
}

// The program does not hear of it.
void forget_errors(ShadowQp& qp) {
  qp.each_cq([&qp](ShadowCq& cq) {
    drain_completions(cq);
    SpinGuard guard(cq.refill_lock);
    std::erase_if(cq.refill, [&qp](const Drained& drained) {
      return drained.wc.qp_num == qp.qp_num.value && drained.wc.status != IBV_WC_SUCCESS;
    });
    cq.note_refill();
  });
  if (qp.takes_shared()) withdraw_newest_event(*qp.context, &qp.qp.qp_base, IBV_EVENT_QP_LAST_WQE_REACHED);
}

// What was flushed is as it was posted.
void take_back(ShadowQp& qp) {
  for (std::uint64_t s = qp.frontier; s < qp.send.head; ++s) {
    qp.send.slot(s).take_force_back();
    qp.send.slot(s).pend(SlotHeader::kPlain);
  }
  for (std::uint64_t s = qp.receive.tail(); s < qp.receive.head; ++s)
    if (RecvSlot& slot = qp.receive.slot(s); slot.status.load() == IBV_WC_WR_FLUSH_ERR) slot.pend(SlotHeader::kPlain);
  qp.receive.retire_to(qp.receive.retired());
}

Status begin_anew(ShadowQp& qp) {
  forget_errors(qp);
  take_back(qp);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  if (int rc = g_backend.modify_qp(qp.real, &attr, IBV_QP_STATE); rc != 0)
    return Status(Code::kInternal, rc, "its change to RESET");
  qp.sparing.reset();
  SHADOWIB_TRY(replay(qp, IBV_QPS_RESET, IBV_QPS_RTR));
  if (int rc = repost_receives(qp, qp.receive.tail()); rc != 0) return Status(Code::kInternal, rc, "its receives");
  SHADOWIB_TRY(replay(qp, IBV_QPS_RTR, IBV_QPS_SQD));
  if (int rc = repost_sends(qp, qp.frontier); rc != 0) return Status(Code::kInternal, rc, "its requests");
  return {};
}

}  // namespace

void begin_anew_what_ran_out() {
  if (g_backend.set_paused != nullptr || !guarded(Guard::kBeginAnew)) return;
  for (ShadowQp& qp : registry().qps) {
    if (!qp.awaits_peer || qp.state() != IBV_QPS_RTS || !is_in_error(qp)) continue;
    if (Status status = begin_anew(qp); !status.ok())
      log_line(LogLevel::kError, "queue pair 0x%x, whose retries ran out during a checkpoint, cannot begin anew: %s",
               qp.qp_num.value, status.text());
  }
}

}  // namespace shadowib
