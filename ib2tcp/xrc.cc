#include "ib2tcp/xrc.h"

#include <errno.h>
#include <fcntl.h>

#include "ib2tcp/device.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/shared_receive_queue.h"

namespace shadowib::ib2tcp {
namespace {

Xrcd& xrcd_of(ibv_xrcd* verbs) { return *reinterpret_cast<Xrcd*>(verbs); }

}  // namespace

// nullptr: none of that number, or one of another domain.
Srq* Qp::named_srq(std::uint32_t number) const {
  Srq* srq = g_engine->xrc_srqs.find(number);
  return srq != nullptr && srq->xrcd->domain == xrcd_->domain ? srq : nullptr;
}

bool Qp::choose_srq(std::uint32_t number) {
  Srq* srq = named_srq(number);
  if (srq == nullptr) return false;
  if (srq != srq_) starved_hook.unlink();
  srq_ = srq;
  rq_ = &srq->queue;
  return true;
}

const ibv_pd* Qp::remote_pd(const FrameHeader& header) const {
  if (!is_target()) return verbs.pd;
  const Srq* srq = named_srq(header.srqn);
  return srq != nullptr ? srq->verbs.pd : nullptr;
}

void Qp::forget_srq(const Srq& srq) {
  if (!is_target() || srq_ != &srq) return;
  starved_hook.unlink();
  srq_ = nullptr;
  rq_ = own_rq_.get();
  if (link_ == nullptr || !link_->fills_receive_of(*this)) return;
  (void)link_->cut(*this);  // the receive goes with its queue
  fail_request(Syndrome::kInvalidRequest, expected_, IBV_EVENT_QP_REQ_ERR);
  link_->pump();
}

ibv_xrcd* open_xrcd(ibv_context* context, int fd, int oflags, ibv_xrcd* shared) {
  const Device* device = reinterpret_cast<Context*>(context)->device;
  if ((oflags & ~(O_CREAT | O_EXCL)) != 0) return fail_null<ibv_xrcd>(EINVAL);
  if (shared == nullptr && fd != -1 && (oflags & O_CREAT) == 0) return fail_null<ibv_xrcd>(EAGAIN);
  if (shared != nullptr && ((oflags & O_EXCL) != 0 || xrcd_of(shared).domain->device != device))
    return fail_null<ibv_xrcd>(EINVAL);
  auto* xrcd = new Xrcd;
  xrcd->verbs.context = context;
  EngineGuard guard;
  xrcd->domain = shared != nullptr ? xrcd_of(shared).domain : std::make_shared<Xrcd::Domain>(Xrcd::Domain{device});
  ++reinterpret_cast<Context*>(context)->users;
  ++g_engine->objects;
  return &xrcd->verbs;
}

int close_xrcd(ibv_xrcd* verbs) {
  EngineGuard guard;
  if (xrcd_of(verbs).users != 0) return EBUSY;
  --reinterpret_cast<Context*>(verbs->context)->users;
  --g_engine->objects;
  delete &xrcd_of(verbs);
  return 0;
}

ibv_qp* create_xrc_target(ibv_xrcd* xrcd, ibv_qp_init_attr* init) {
  EngineGuard guard;
  Qp* qp = nullptr;
  if (int rc = Qp::create(nullptr, &xrcd_of(xrcd), init, &qp); rc != 0) return fail_null<ibv_qp>(rc);
  return &qp->verbs;
}

}  // namespace shadowib::ib2tcp
