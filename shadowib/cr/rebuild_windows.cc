// Memory windows after a restart: made again, and bound again to what they were bound to as of the frontier.
#include <errno.h>
#include <string.h>
#include <time.h>

#include <algorithm>

#include "shadowib/cr/ports.h"
#include "shadowib/cr/rebuild.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

constexpr std::int64_t kBindTimeoutNs = 5'000'000'000;

std::int64_t monotonic_now_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

Status failed(int error, const char* what, const ShadowMw& mw) {
  return Status::of(Code::kRefused, error, "cannot rebuild memory window 0x%x: %s: %s", mw.mw.rkey, what,
                    ::strerror(error));
}

// Binds through `qp`, on which nothing else is under way, and takes the completion out of `cq`.
Status bind_again(ShadowMw& mw, ibv_qp* qp, ibv_cq* cq) {
  const ShadowMr& mr = *ShadowMr::of(mw.bound.mr);
  if (mr.real->length < mr.mr.length) return {};  // its memory is gone: nothing is to be reached there
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.bind_mw = {mw.real, window_key(mw.real->rkey, mw.key.value), mw.bound};
  wr.bind_mw.bind_info.mr = mr.real;
  if (int rc = g_backend.post_send(qp, &wr, &bad); rc != 0) return failed(rc, "its bind is refused", mw);
  const std::int64_t deadline = monotonic_now_ns() + kBindTimeoutNs;
  ibv_wc wc{};
  int n;
  while ((n = g_backend.poll_cq(cq, 1, &wc)) == 0)
    if (monotonic_now_ns() > deadline) return failed(ETIMEDOUT, "its bind does not complete", mw);
  if (n < 0 || wc.status != IBV_WC_SUCCESS) return failed(EIO, "its bind fails", mw);
  mw.real_key = {wr.bind_mw.rkey};
  return {};
}

// A queue pair of our own, for windows of type 1: whoever bound them may be gone. It is connected to itself.
class Binder {
 public:
  Binder() = default;
  ~Binder() {
    if (qp_ != nullptr) g_backend.destroy_qp(qp_);
    if (cq_ != nullptr) g_backend.destroy_cq(cq_);
  }
  Binder(const Binder&) = delete;
  Binder& operator=(const Binder&) = delete;

  Status bind(ShadowMw& mw) {
    if (pd_ != mw.mw.pd)
      if (int rc = open(mw.mw.pd); rc != 0) return failed(rc, "no queue pair to bind it by", mw);
    return bind_again(mw, qp_, cq_);
  }

 private:
  int open(ibv_pd* pd) {
    if (qp_ != nullptr) g_backend.destroy_qp(qp_);
    if (cq_ != nullptr) g_backend.destroy_cq(cq_);
    pd_ = pd;
    qp_ = nullptr;
    ShadowContext& context = *ShadowContext::of(pd->context);
    cq_ = g_backend.create_cq(context.real, 4, nullptr, nullptr, 0);
    if (cq_ == nullptr) return errno;
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.qp_type = IBV_QPT_RC;
    init.cap = {4, 1, 1, 1, 0};
    qp_ = g_backend.create_qp(ShadowPd::of(pd)->real, &init);
    return qp_ != nullptr ? connect(context.ports[0]) : errno;
  }

  int connect(const ShadowPort& port) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    if (int rc = modify(&attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS); rc != 0) return rc;
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_256;
    attr.dest_qp_num = qp_->qp_num;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.dlid = static_cast<std::uint16_t>(port.real_lid.value);
    attr.ah_attr.is_global = port.real_lid.value == 0;
    if (attr.ah_attr.is_global != 0 && !port.real_gids.empty()) {
      attr.ah_attr.grh.dgid = port.real_gids[0];
      attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(source_index(port, 0, port.real_gids[0]));
    }
    if (int rc = modify(&attr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        rc != 0)
      return rc;
    attr.qp_state = IBV_QPS_RTS;
    return modify(&attr,
                  IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  int modify(ibv_qp_attr* attr, int mask) { return g_backend.modify_qp(qp_, attr, IBV_QP_STATE | mask); }

  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
};

}  // namespace

Status rebuild_windows(Registry& r) {
  // What was flushed will not run, and a window of a queue pair that takes nothing in any more is nobody's.
  for (ShadowQp& qp : r.qps)
    if (qp.doomed || qp.settled_state == IBV_QPS_ERR) qp.context->windows.abandon(qp);
  for (ShadowContext& context : r.contexts) context.windows.clear();
  Binder binder;
  for (ShadowMw& mw : r.mws) {
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
