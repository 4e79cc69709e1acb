// Shared receive queues: create, modify, query, destroy.
#include <errno.h>

#include <algorithm>

#include "hooks/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/entry/errors.h"
#include "shadowib/entry/quarantine.h"
#include "shadowib/objects/registry.h"

using namespace shadowib;

extern "C" {

ibv_srq* shadowib_ibv_create_srq(ibv_pd* program_pd, ibv_srq_init_attr* init) {
  if (ShadowContext::is_foreign(program_pd->context)) return null_with(EPERM);
  Inside inside;
  if (g_backend.create_srq == nullptr) return null_with(EOPNOTSUPP);
  if (init->attr.max_sge > kMaxSge) return null_with(EINVAL);
  ShadowPd* pd = ShadowPd::of(program_pd);
  auto* srq = new ShadowSrq{};
  ibv_srq_init_attr real_init = *init;
  real_init.srq_context = srq;
  srq->real = g_backend.create_srq(pd->real, &real_init);
  if (srq->real == nullptr) {
    int saved = errno;
    delete srq;
    return null_with(saved);
  }
  real_init.attr.max_sge = std::min(real_init.attr.max_sge, kMaxSge);
  if (!srq->log.create(real_init.attr.max_wr, real_init.attr.max_sge)) {
    g_backend.destroy_srq(srq->real);
    delete srq;
    return null_with(ENOMEM);
  }
  init->attr = srq->init.attr = real_init.attr;
  srq->context = ShadowContext::of(program_pd->context);
  srq->srq.context = program_pd->context;
  srq->srq.srq_context = init->srq_context;
  srq->srq.pd = program_pd;
  srq->srq.handle = srq->real->handle;
  ::pthread_mutex_init(&srq->srq.mutex, nullptr);
  ::pthread_cond_init(&srq->srq.cond, nullptr);
  Registry& r = registry();
  SpinGuard guard(r.lock);
  ++pd->users;
  r.srqs.push_back(*srq);
  return &srq->srq;
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
    drain_async_events(*srq->context);  // while the real object they name exists
    if (int rc = g_backend.destroy_srq(srq->real); rc != 0) return rc;
    r.srqs.erase(r.srqs.iterator_to(*srq));
    --ShadowPd::of(program->pd)->users;
    withdraw_async_events(*srq->context, program);
  }
  wait_acknowledged(srq->events_delivered, srq->events_acknowledged);
  Inside inside;
  SpinGuard guard(registry().lock);
  rest_before_delete(srq);
  return 0;
}

}  // extern "C"
