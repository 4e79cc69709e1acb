// Memory windows after a restart: made again, and bound again to what they were bound to as of the frontier.
#include <errno.h>
#include <string.h>

#include <algorithm>

#include "shadowib/base/guard.h"
#include "shadowib/cr/border.h"
#include "shadowib/cr/loopback.h"
#include "shadowib/cr/rebuild.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

Status failed(int error, const char* what, const ShadowMw& mw) {
  return Status::of(Code::kRefused, error, "cannot rebuild memory window 0x%x: %s: %s", mw.mw.rkey, what,
                    ::strerror(error));
}

// Binds through `qp`, on which nothing else is under way, and takes the completion out of `cq`.
Status bind_again(ShadowMw& mw, ibv_qp* qp, ibv_cq* cq) {
  if (!guarded(Guard::kBindAgain)) return {};
  const ShadowMr& mr = *ShadowMr::of(mw.bound.mr);
  if (mr.real->length < mr.mr.length) return {};  // its memory is gone: nothing is to be reached there
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.bind_mw = {mw.real, window_key(mw.real->rkey, mw.key.value), mw.bound};
  wr.bind_mw.bind_info.mr = mr.real;
  if (int rc = run_alone(qp, cq, &wr); rc != 0) return failed(rc, "its bind fails", mw);
  mw.real_key = {wr.bind_mw.rkey};
  return {};
}

// For windows of type 1: whoever bound them may be gone.
class Binder {
 public:
  Status bind(ShadowMw& mw) {
    if (pd_ != mw.mw.pd) {
      pd_ = mw.mw.pd;
      const int rc = loopback_.open(*ShadowContext::of(pd_->context), ShadowPd::of(pd_)->real);
      if (rc != 0) return failed(rc, "no queue pair to bind it by", mw);
    }
    return bind_again(mw, loopback_.qp(), loopback_.cq());
  }

 private:
  ibv_pd* pd_ = nullptr;
  Loopback loopback_;
};

}  // namespace

Status rebuild_windows(Registry& r) {
  // What was flushed will not run, and a window of a queue pair that takes nothing in any more is nobody's.
  for (ShadowQp& qp : r.qps)
    if (qp.doomed || qp.settled_state == IBV_QPS_ERR) qp.context->windows.abandon(qp);
  for (ShadowContext& context : r.contexts) context.windows.clear();
  Binder binder;
  for (ShadowMw& mw : r.mws) {
    SHADOWIB_TRY(want_number_of(mw));
    errno = EOPNOTSUPP;
    mw.real = g_backend.alloc_mw != nullptr ? g_backend.alloc_mw(ShadowPd::of(mw.mw.pd)->real, mw.mw.type) : nullptr;
    if (mw.real == nullptr) return failed(errno, "it cannot be allocated", mw);
    ShadowContext::of(mw.mw.context)->windows.insert(mw);
    r.reserved_blocks.push_back(window_block(mw.mw.rkey));
    if (mw.mw.type == IBV_MW_TYPE_1 && mw.bound.mr != nullptr) SHADOWIB_TRY(binder.bind(mw));
  }
  std::sort(r.reserved_blocks.begin(), r.reserved_blocks.end());
  return {};
}

Status rebind_windows(Registry& r) {
  for (ShadowMw& mw : r.mws) {
    if (mw.bound_by == nullptr) continue;
    ShadowQp& qp = *mw.bound_by;
    SHADOWIB_TRY(bind_again(mw, qp.real, ShadowCq::of(qp.init.send_cq)->real));
    if (g_backend.sq_executed != nullptr) qp.executed_base = qp.frontier - g_backend.sq_executed(qp.real);
  }
  return {};
}

}  // namespace shadowib
