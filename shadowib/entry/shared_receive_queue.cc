// Shared receive queues: create, modify, query, destroy.
#include <errno.h>

#include <algorithm>

#include "hooks/threads/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/base/log.h"
#include "shadowib/cr/announce.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/entry/errors.h"
#include "shadowib/entry/extended.h"
#include "shadowib/entry/quarantine.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// The real queue and, of XRC, its number. False with errno.
bool make_real(ShadowSrq& srq, ShadowPd& pd, ibv_srq_init_attr* init) {
  if (srq.xrcd == nullptr) {
    srq.real = g_backend.create_srq(pd.real, init);
    return srq.real != nullptr;
  }
  srq.real = g_backend.create_xrc_srq(pd.real, srq.xrcd->real, srq.cq->real, init);
  if (srq.real == nullptr) return false;
  errno = g_backend.get_srq_num(srq.real, &srq.real_number.value);
  if (errno == 0) return true;
  g_backend.destroy_srq(srq.real);
  return false;
}

void count_uses(ShadowSrq& srq, int step) {
  const auto n = static_cast<std::uint32_t>(step);
  ShadowPd::of(srq.srq.pd)->users += n;
  if (srq.xrcd == nullptr) return;
  srq.xrcd->users += n;
  srq.cq->users += n;
}

}  // namespace

ibv_srq* create_shared_receive_queue(ibv_pd* program_pd, ShadowXrcd* xrcd, ShadowCq* cq, ibv_srq_init_attr* init) {
  if (ShadowContext::is_foreign(program_pd->context)) return null_with(EPERM);
  Inside inside;
  if (g_backend.create_srq == nullptr) return null_with(EOPNOTSUPP);
  if (init->attr.max_sge > kMaxSge) return null_with(EINVAL);
  auto* srq = new ShadowSrq{};
  ibv_srq_init_attr real_init = *init;
  real_init.srq_context = srq;
  srq->xrcd = xrcd;
  srq->cq = cq;
  if (!make_real(*srq, *ShadowPd::of(program_pd), &real_init)) {
    int saved = errno;
    delete srq;
    return null_of_backend("ibv_create_srq", saved);
  }
  real_init.attr.max_sge = std::min(real_init.attr.max_sge, kMaxSge);
  if (!srq->log.create(real_init.attr.max_wr, real_init.attr.max_sge)) {
    g_backend.destroy_srq(srq->real);
    delete srq;
    return null_with(ENOMEM);
  }
  if (Status s = xrcd != nullptr ? choose_srq_num(srq->real_number, &srq->number) : Status{}; !s.ok()) {
    log_line(LogLevel::kError, "no number for an XRC queue can be claimed: %s", s.text());
    g_backend.destroy_srq(srq->real);
    delete srq;
    return null_with(EIO);
  }
  init->attr = srq->init.attr = real_init.attr;
  srq->context = ShadowContext::of(program_pd->context);
  srq->srq.context = program_pd->context;
  srq->srq.srq_context = init->srq_context;
  srq->srq.pd = program_pd;
  srq->srq.handle = srq->real->handle;
  ::pthread_mutex_init(&srq->srq.mutex, nullptr);
  ::pthread_cond_init(&srq->srq.cond, nullptr);
  {
    Registry& r = registry();
    SpinGuard guard(r.lock);
    count_uses(*srq, 1);
    if (xrcd != nullptr) {
      SpinGuard refill(cq->refill_lock);
      cq->xrc_srqs.push_back(srq);
    }
    r.srqs.push_back(*srq);
  }
  if (xrcd != nullptr) announce_late_srq(*srq);
  return &srq->srq;
}

ibv_srq* create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* attr) {
  constexpr unsigned kXrc =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  const bool is_xrc = (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0 && attr->srq_type != IBV_SRQT_BASIC;
  if ((attr->comp_mask & ~kXrc) != 0 ||
      (is_xrc && (attr->srq_type != IBV_SRQT_XRC || g_backend.create_xrc_srq == nullptr)))
    return null_with(EOPNOTSUPP);
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) == 0 || (is_xrc && attr->comp_mask != kXrc)) return null_with(EINVAL);
  if (is_xrc && (attr->pd->context != context || attr->xrcd->context != context || attr->cq->context != context))
    return null_with(EINVAL);
  ibv_srq_init_attr plain{attr->srq_context, attr->attr};
  ibv_srq* srq = create_shared_receive_queue(attr->pd, is_xrc ? ShadowXrcd::of(attr->xrcd) : nullptr,
                                             is_xrc ? ShadowCq::of(attr->cq) : nullptr, &plain);
  if (srq != nullptr) attr->attr = plain.attr;
  return srq;
}

int get_srq_num(ibv_srq* program, std::uint32_t* number) {
  const ShadowSrq& srq = *ShadowSrq::of(program);
  if (srq.xrcd == nullptr) return EINVAL;  // nobody names others
  *number = srq.number.value;
  return 0;
}

}  // namespace shadowib

using namespace shadowib;

extern "C" {

ibv_srq* shadowib_ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  return create_shared_receive_queue(pd, nullptr, nullptr, init);
}

int shadowib_ibv_modify_srq(ibv_srq* program, ibv_srq_attr* attr, int mask) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  // Another size would need another log; the device's capabilities do not offer it.
  if ((mask & IBV_SRQ_MAX_WR) != 0) return EOPNOTSUPP;
  return g_backend.modify_srq(ShadowSrq::of(program)->real, attr, mask);
}

int shadowib_ibv_query_srq(ibv_srq* program, ibv_srq_attr* attr) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  Inside inside;
  ShadowSrq& srq = *ShadowSrq::of(program);
  if (int rc = g_backend.query_srq(srq.real, attr); rc != 0) return rc;
  attr->max_wr = srq.init.attr.max_wr;
  attr->max_sge = srq.init.attr.max_sge;
  return 0;
}

int shadowib_ibv_destroy_srq(ibv_srq* program) {
  if (ShadowContext::is_foreign(program->context)) return EPERM;
  ShadowSrq* srq = ShadowSrq::of(program);
  {
    Inside inside;
    Registry& r = registry();
    SpinGuard guard(r.lock);
    if (srq->users != 0) return EBUSY;
    if (int rc = destroy_real(*srq->context, g_backend.destroy_srq, srq->real); rc != 0) return rc;
    if (srq->xrcd != nullptr) withdraw_late_srq(*srq);
    r.srqs.erase(r.srqs.iterator_to(*srq));
    if (srq->xrcd != nullptr) purge_completions(*srq->cq, *srq);
    count_uses(*srq, -1);
    withdraw_async_events(*srq->context, program);
  }
  srq->events.wait_for_all();
  Inside inside;
  SpinGuard guard(registry().lock);
  rest_before_delete(srq);
  return 0;
}

}  // extern "C"
