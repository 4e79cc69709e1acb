#include "ib2tcp/shared_receive_queue.h"

#include <errno.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "ib2tcp/device.h"
#include "ib2tcp/host.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/xrc.h"

namespace shadowib::ib2tcp {
namespace {

Srq& srq_of(ibv_srq* verbs) { return *reinterpret_cast<Srq*>(verbs); }
Context& context_of(const Srq& srq) { return *reinterpret_cast<Context*>(srq.verbs.context); }

// nullptr with errno. Counts as a use of the protection domain.
Srq* make(ibv_pd* pd, ibv_srq_init_attr* init) {
  static std::atomic<std::uint32_t> next_handle{1};
  ibv_srq_attr& attr = init->attr;
  if (attr.max_wr < 1 || attr.max_wr > kMostWr || attr.max_sge > kMostSge) return fail_null<Srq>(EINVAL);
  attr.max_sge = std::max(attr.max_sge, 1u);
  auto srq = std::make_unique<Srq>();
  if (!srq->queue.init(attr.max_wr, attr.max_sge)) return fail_null<Srq>(ENOMEM);
  srq->verbs.context = pd->context;
  srq->verbs.srq_context = init->srq_context;
  srq->verbs.pd = pd;
  srq->verbs.handle = next_handle.fetch_add(1);
  ++reinterpret_cast<Pd*>(pd)->users;
  ++g_engine->objects;
  return srq.release();
}

// Under the engine's lock.
void destroy(Srq& srq) {
  if (srq.xrcd != nullptr) {
    if (srq.number != 0) g_engine->xrc_srqs.remove(srq.number);
    g_engine->qps.for_each([&](Qp& qp) { qp.forget_srq(srq); });
    --srq.xrcd->users;
    --srq.cq->users;
  }
  g_engine->outstanding.add(-std::int64_t{srq.queue.size()});
  context_of(srq).forget(&srq.verbs, srq.unread_events);
  --reinterpret_cast<Pd*>(srq.verbs.pd)->users;
  --g_engine->objects;
  delete &srq;
}

}  // namespace

void Srq::check_limit() {
  if (limit == 0 || queue.waiting() >= limit) return;
  limit = 0;
  ibv_async_event event{};
  event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
  event.element.srq = &verbs;
  context_of(*this).raise(event);
}

int Srq::post(ibv_recv_wr* wr, ibv_recv_wr** bad) {
  int rc = 0;
  for (; wr != nullptr; wr = wr->next) {
    if ((rc = queue.post(*wr)) != 0) {
      *bad = wr;
      break;
    }
    g_engine->outstanding.add(1);
  }
  // One peer for each receive there is; the others hear of later ones, or try again when their timers say so.
  for (std::uint32_t n = queue.waiting(); n > 0 && !starved.empty(); --n) {
    Qp& qp = starved.front();
    starved.pop_front();
    qp.tell_receive_posted();
  }
  return rc;
}

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  Srq* srq = make(pd, init);
  return srq != nullptr ? &srq->verbs : nullptr;
}

ibv_srq* create_xrc_srq(ibv_pd* pd, ibv_xrcd* domain, ibv_cq* cq, ibv_srq_init_attr* init) {
  if (domain->context != pd->context || cq->context != pd->context) return fail_null<ibv_srq>(EINVAL);
  Srq* srq = make(pd, init);
  if (srq == nullptr) return nullptr;
  EngineGuard guard;
  srq->xrcd = reinterpret_cast<Xrcd*>(domain);
  srq->cq = reinterpret_cast<Cq*>(cq);
  ++srq->xrcd->users;
  ++srq->cq->users;
  srq->number = g_engine->xrc_srqs.insert(srq);
  if (srq->number != 0) return &srq->verbs;
  destroy(*srq);
  return fail_null<ibv_srq>(ENOMEM);
}

int get_srq_num(ibv_srq* srq, std::uint32_t* number) {
  if (srq_of(srq).xrcd == nullptr) return EINVAL;  // nobody names others
  *number = srq_of(srq).number;
  return 0;
}

int modify_srq(ibv_srq* verbs, ibv_srq_attr* attr, int mask) {
  if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) != 0) return EINVAL;
  if ((mask & IBV_SRQ_MAX_WR) != 0) return EOPNOTSUPP;  // as the device's capabilities say
  EngineGuard guard;
  Srq& srq = srq_of(verbs);
  if ((mask & IBV_SRQ_LIMIT) == 0) return 0;
  if (attr->srq_limit > srq.queue.depth()) return EINVAL;
  srq.limit = attr->srq_limit;
  srq.check_limit();
  return 0;
}

int query_srq(ibv_srq* verbs, ibv_srq_attr* attr) {
  EngineGuard guard;
  const Srq& srq = srq_of(verbs);
  *attr = {srq.queue.depth(), srq.queue.max_sge(), srq.limit};
  return 0;
}

int destroy_srq(ibv_srq* verbs) {
  EngineGuard guard;
  if (srq_of(verbs).users != 0) return EBUSY;
  destroy(srq_of(verbs));
  return 0;
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  EngineGuard guard;
  return srq_of(srq).post(wr, bad);
}

}  // namespace shadowib::ib2tcp
