// Queue pairs: create, modify, query, destroy.
#include <errno.h>
#include <string.h>

#include <algorithm>

#include "hooks/agent/agent.h"
#include "hooks/threads/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/base/log.h"
#include "shadowib/cr/announce.h"
#include "shadowib/cr/fences.h"
#include "shadowib/cr/peers.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/entry/errors.h"
#include "shadowib/entry/extended.h"
#include "shadowib/entry/quarantine.h"
#include "shadowib/objects/border.h"
#include "shadowib/objects/forced_signals.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// As granted, or more: Soft-RoCE rounds up, and says so only when it is asked.
ibv_qp_cap real_capacity(ibv_qp* real, const ibv_qp_init_attr& granted) {
  ibv_qp_cap cap = granted.cap;
  cap.max_send_sge = std::min(cap.max_send_sge, kMaxSge);
  cap.max_recv_sge = std::min(cap.max_recv_sge, kMaxSge);
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  if (g_backend.query_qp(real, &attr, IBV_QP_CAP, &init) != 0) return cap;
  if (granted.send_cq != nullptr) cap.max_send_wr = std::max(cap.max_send_wr, attr.cap.max_send_wr);
  if (granted.recv_cq != nullptr && granted.srq == nullptr)
    cap.max_recv_wr = std::max(cap.max_recv_wr, attr.cap.max_recv_wr);
  return cap;
}

bool make_logs(ShadowQp& qp, const ibv_qp_cap& cap) {
  return qp.send.create(std::max(1u, cap.max_send_wr), std::max(1u, cap.max_send_sge), cap.max_inline_data, false,
                        qp.init.sq_sig_all != 0) &&
         qp.receive.create(std::max(1u, cap.max_recv_wr), std::max(1u, cap.max_recv_sge), 0, true);
}

// Backends that do not say what they purge (BackendOps::purges_completions): stops a queue pair from taking shared
// receives and notes those it has taken, before its completions are lost to us.
void stop_taking_shared(ShadowQp& qp) {
  if (qp.srq == nullptr || g_backend.purges_completions || qp.state() == IBV_QPS_RESET) return;
  if (qp.state() != IBV_QPS_ERR) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    if (g_backend.modify_qp(qp.real, &attr, IBV_QP_STATE) == 0)
      withdraw_newest_event(*qp.context, &qp.qp.qp_base, IBV_EVENT_QP_LAST_WQE_REACHED);
  }
  drain_completions(*ShadowCq::of(qp.init.recv_cq));
}

// What binds of this queue pair have run is settled before it goes; those that have not never will.
void leave_windows(ShadowQp& qp) {
  WindowTable& windows = qp.context->windows;
  if (!windows.used()) return;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  if (windows.has_changes_by(qp)) (void)g_backend.modify_qp(qp.real, &attr, IBV_QP_STATE);
  windows.leave(qp);
}

// What an XRC target has received stays to be polled when it goes or begins anew: it gets its number, and is counted,
// while that is known. The backend has destroyed or reset it.
void keep_shared_completions(const ShadowQp& target) {
  for (ShadowSrq& srq : registry().srqs)
    if (srq.xrcd != nullptr && srq.xrcd->is_one_with(*target.xrcd)) drain_completions(*srq.cq);
}

// What a way to RESET means for the logs: nothing posted is left, a new connection counts from zero.
void reset_logs(ShadowQp& qp) {
  qp.each_cq([&](ShadowCq& cq) { purge_completions(cq, qp.qp_num); });
  if (qp.is_target()) keep_shared_completions(qp);
  SpinGuard send(qp.send.lock);
  SpinGuard receive(qp.receive.lock);
  qp.send.clear();
  qp.sparing.reset();
  qp.receive.clear();
  qp.send.messages = 0;
  qp.shared_consumed = 0;
  qp.executed_base = 0 - (g_backend.sq_executed != nullptr ? g_backend.sq_executed(qp.real) : 0);
  qp.remote = {};
  qp.remote_keys.reset();
  qp.remote_srqs.clear();
  qp.doomed = false;
}

// Which types there are and what each is made of. What a type has no use for is taken out of `init`.
int check_parts(bool is_target, ibv_qp_init_attr* init) {
  switch (init->qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
      if (init->send_cq == nullptr || init->recv_cq == nullptr) return EINVAL;
      break;
    case IBV_QPT_XRC_SEND:
      if (init->send_cq == nullptr || init->srq != nullptr) return EINVAL;
      init->recv_cq = nullptr;
      break;
    case IBV_QPT_XRC_RECV:
      init->send_cq = init->recv_cq = nullptr;
      init->srq = nullptr;
      break;
    default:
      return EOPNOTSUPP;
  }
  if (is_target != (init->qp_type == IBV_QPT_XRC_RECV)) return EINVAL;
  return std::max(init->cap.max_send_sge, init->cap.max_recv_sge) > kMaxSge ? EINVAL : 0;
}

ibv_qp* create_real(ShadowPd* pd, ShadowXrcd* xrcd, ibv_qp_init_attr* init) {
  if (init->send_cq != nullptr) init->send_cq = ShadowCq::of(init->send_cq)->real;
  if (init->recv_cq != nullptr) init->recv_cq = ShadowCq::of(init->recv_cq)->real;
  if (init->srq != nullptr) init->srq = ShadowSrq::of(init->srq)->real;
  return xrcd != nullptr ? g_backend.create_xrc_target(xrcd->real, init) : g_backend.create_qp(pd->real, init);
}

// What it was made of, which stays as long as it does.
void count_uses(ShadowQp& qp, int step) {
  const auto n = static_cast<std::uint32_t>(step);
  if (qp.qp.qp_base.pd != nullptr) ShadowPd::of(qp.qp.qp_base.pd)->users += n;
  if (qp.xrcd != nullptr) qp.xrcd->users += n;
  qp.each_cq([n](ShadowCq& cq) { cq.users += n; });
  if (qp.srq != nullptr) qp.srq->users += n;
}

// The real object and all that is known of it. 0 or an errno: nothing has changed then. Caller holds the registry's
// lock.
int destroy_real(ShadowQp& qp) {
  Registry& r = registry();
  stop_taking_shared(qp);
  leave_windows(qp);
  const RealQpNum number{qp.real->qp_num};
  if (int rc = destroy_real(*qp.context, g_backend.destroy_qp, qp.real); rc != 0) return rc;
  withdraw_late_qp(qp);
  r.qps.erase(r.qps.iterator_to(qp));
  if (qp.is_datagram()) r.sweep_address_handles();
  if (qp.is_target()) keep_shared_completions(qp);
  r.unnumber(qp, number);
  qp.each_cq([&](ShadowCq& cq) { purge_completions(cq, qp.qp_num); });
  end_forcing_signals(qp);
  count_uses(qp, -1);
  return 0;
}

}  // namespace
}  // namespace shadowib

namespace shadowib {

ibv_qp* create_queue_pair(ibv_context* context, ibv_pd* pd, ibv_xrcd* xrcd, ibv_qp_init_attr* init) {
  if (ShadowContext::is_foreign(context)) return null_with(EPERM);
  Inside inside;
  ibv_qp_init_attr usable = *init;
  if (int rc = check_parts(xrcd != nullptr, &usable); rc != 0) return null_with(rc);
  auto* qp = new ShadowQp{};
  ibv_qp_init_attr real_init;
  if (xrcd != nullptr) qp->xrcd = ShadowXrcd::of(xrcd);
  ShadowPd* const shadow_pd = pd != nullptr ? ShadowPd::of(pd) : nullptr;
  std::uint32_t room = shadow_pd != nullptr && may_spare(*shadow_pd, usable) ? Sparing::kRoom : 0;
  const auto create = [&] {
    real_init = usable;
    real_init.qp_context = qp;
    real_init.cap.max_send_wr += room;
    return create_real(shadow_pd, qp->xrcd, &real_init);
  };
  qp->real = create();
  if (qp->real == nullptr && room != 0) {  // it may be too large with it
    room = 0;
    qp->real = create();
  }
  if (qp->real == nullptr) {
    int saved = errno;
    delete qp;
    return null_of_backend("ibv_create_qp", saved);
  }
  qp->init = usable;
  qp->real_cap = real_capacity(qp->real, real_init);
  qp->real_cap.max_send_wr -= room;
  if (!make_logs(*qp, qp->real_cap)) {
    g_backend.destroy_qp(qp->real);
    delete qp;
    return null_with(ENOMEM);
  }
  if (Status s = choose_qp_num({qp->real->qp_num}, &qp->qp_num); !s.ok()) {
    log_line(LogLevel::kError, "no number for a queue pair can be claimed: %s", s.text());
    g_backend.destroy_qp(qp->real);
    delete qp;
    return null_with(EIO);
  }
  real_init.cap.max_send_wr -= room;
  qp->sparing.room = room;
  init->cap = real_init.cap;
  init->cap.max_send_sge = qp->real_cap.max_send_sge;
  init->cap.max_recv_sge = qp->real_cap.max_recv_sge;
  qp->real_post_send = g_backend.post_send;
  qp->real_post_recv = g_backend.post_recv;
  qp->context = ShadowContext::of(context);
  ibv_qp& base = qp->qp.qp_base;
  base.context = context;
  base.qp_context = init->qp_context;
  base.pd = pd;
  base.send_cq = init->send_cq;
  base.recv_cq = init->recv_cq;
  base.srq = usable.srq;
  base.handle = qp->real->handle;
  base.state = IBV_QPS_RESET;
  base.qp_type = init->qp_type;
  if (qp->context->translate) qp->turn_receives();
  if (qp->context->translate || qp->needs_turning()) qp->turn_sends();
  ::pthread_mutex_init(&base.mutex, nullptr);
  ::pthread_cond_init(&base.cond, nullptr);
  {
    Registry& r = registry();
    SpinGuard guard(r.lock);
    base.qp_num = qp->qp_num.value;
    qp->send.belongs_to(qp->qp_num);
    // Before any restart a datagram tells its sender as it is.
    qp->receive.belongs_to(qp->is_datagram() && qp->translate_receives ? VirtualQpNum{0} : qp->qp_num);
    if (usable.srq != nullptr) qp->srq = ShadowSrq::of(usable.srq);
    count_uses(*qp, 1);
    r.number(*qp);
    begin_forcing_signals(*qp);
    if (qp->context->windows.used()) qp->turn_sends();
    r.qps.push_back(*qp);
  }
  announce_late_qp(*qp);
  return &base;
}

}  // namespace shadowib

using namespace shadowib;

extern "C" {

ibv_qp* shadowib_ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  return create_queue_pair(pd->context, pd, nullptr, init);
}

int shadowib_ibv_modify_qp(ibv_qp* program, ibv_qp_attr* attr, int mask) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  if ((mask & IBV_QP_STATE) != 0 && (attr->qp_state == IBV_QPS_RESET || attr->qp_state == IBV_QPS_ERR))
    await_sending_again();
  Inside inside;
  ShadowQp& qp = ShadowQp::of(program)->itself();
  if ((mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_RESET) {
    stop_taking_shared(qp);
    leave_windows(qp);
  }
  ibv_qp_attr real = *attr;
  if (Status status = turn_address(qp, &real, mask); !status.ok()) return errno_from(status, "ibv_modify_qp");
  const bool starts_draining = (mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_SQD && qp.state() != IBV_QPS_SQD;
  const bool was_due = qp.drain_event_due;
  if (starts_draining) end_sparing(qp);
  if (starts_draining)  // before the event can come
    qp.drain_event_due = (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) != 0 && attr->en_sqd_async_notify != 0;
  if (int rc = g_backend.modify_qp(qp.real, &real, mask); rc != 0) {
    if (starts_draining) {
      qp.drain_event_due = was_due;
      begin_sparing(qp);
    }
    errno = rc;  // which a driver's system call leaves there, and UCX tells of
    return rc;
  }
  {
    SpinGuard guard(registry().lock);  // another thread's ibv_query_qp reads it
    remember(&qp.modifies, *attr, mask);
  }
  if (mask & IBV_QP_STATE) {
    if (attr->qp_state != IBV_QPS_SQD) qp.drains_again = false;
    SpinGuard guard(registry().lock);  // the status that others ask for shows it
    program->state = qp.qp.qp_base.state = attr->qp_state;
    if (attr->qp_state == IBV_QPS_RESET) reset_logs(qp);
  }
  if ((mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_RTS) begin_sparing(qp);
  return 0;
}

int shadowib_ibv_query_qp(ibv_qp* program, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  ShadowQp& qp = ShadowQp::of(program)->itself();
  if (int rc = g_backend.query_qp(qp.real, attr, mask, init); rc != 0) return rc;
  SpinGuard guard(registry().lock);  // another thread's ibv_modify_qp changes it, and the log of changes
  program->state = qp.qp.qp_base.state = attr->qp_state;
  attr->cap.max_send_wr -= std::min(attr->cap.max_send_wr, qp.sparing.room);
  init->cap.max_send_wr -= std::min(init->cap.max_send_wr, qp.sparing.room);
  // The remote end and the queues as the program named them.
  for (const RecordedModify& m : qp.modifies) {
    if (m.mask & IBV_QP_AV) attr->ah_attr = m.attr.ah_attr;
    if (m.mask & IBV_QP_DEST_QPN) attr->dest_qp_num = m.attr.dest_qp_num;
    if (m.mask & IBV_QP_RNR_RETRY) attr->rnr_retry = m.attr.rnr_retry;
    if (job_info().generation == 0) continue;  // the adapter's own answer, which may be rounded up
    if (m.mask & IBV_QP_PKEY_INDEX) attr->pkey_index = m.attr.pkey_index;
    if (m.mask & IBV_QP_ALT_PATH) {
      attr->alt_ah_attr = m.attr.alt_ah_attr;
      attr->alt_pkey_index = m.attr.alt_pkey_index;
    }
    if (m.mask & IBV_QP_MAX_QP_RD_ATOMIC) attr->max_rd_atomic = m.attr.max_rd_atomic;
    if (m.mask & IBV_QP_MAX_DEST_RD_ATOMIC) attr->max_dest_rd_atomic = m.attr.max_dest_rd_atomic;
  }
  init->qp_context = program->qp_context;
  init->send_cq = program->send_cq;
  init->recv_cq = program->recv_cq;
  init->srq = program->srq;
  return 0;
}

int shadowib_ibv_destroy_qp(ibv_qp* program) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  await_sending_again();
  ShadowQp* handle = ShadowQp::of(program);
  ShadowQp* qp = &handle->itself();
  bool is_last;
  {
    Inside inside;
    SpinGuard guard(registry().lock);
    if (!qp->groups.empty()) return EBUSY;
    is_last = qp->handles.size() + !qp->closed == 1;
    if (is_last)
      if (int rc = destroy_real(*qp); rc != 0) return rc;
    close_handle(*handle);
  }
  handle->events.wait_for_all();
  Inside inside;
  SpinGuard guard(registry().lock);
  if (handle != qp) rest_before_delete(handle);
  if (is_last) rest_before_delete(qp);
  return 0;
}

int shadowib_ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, std::uint32_t) { return 0; }

ibv_qp_ex* shadowib_ibv_qp_to_qp_ex(ibv_qp* program) {
  ShadowQp* qp = ShadowQp::of(program);
  return qp->builder != nullptr ? &qp->qp : nullptr;  // none on a plain queue pair
}

}  // extern "C"
