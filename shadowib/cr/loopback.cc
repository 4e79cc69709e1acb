#include "shadowib/cr/loopback.h"

#include <errno.h>

#include "shadowib/cr/ports.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

constexpr std::int64_t kTimeoutNs = 5'000'000'000;

}  // namespace

int run_alone(ibv_qp* qp, ibv_cq* cq, ibv_send_wr* wr) {
  ibv_send_wr* bad = nullptr;
  if (int rc = g_backend.post_send(qp, wr, &bad); rc != 0) return rc;
  const std::int64_t deadline = monotonic_ns() + kTimeoutNs;
  ibv_wc wc{};
  int n;
  while ((n = g_backend.poll_cq(cq, 1, &wc)) == 0)
    if (monotonic_ns() > deadline) return ETIMEDOUT;
  return n < 0 || wc.status != IBV_WC_SUCCESS ? EIO : 0;
}

void Loopback::close() {
  if (qp_ != nullptr) g_backend.destroy_qp(qp_);
  if (cq_ != nullptr) g_backend.destroy_cq(cq_);
  qp_ = nullptr;
  cq_ = nullptr;
}

int Loopback::open(const ShadowContext& context, ibv_pd* pd) {
  close();
  cq_ = g_backend.create_cq(context.real, 4, nullptr, nullptr, 0);
  if (cq_ == nullptr) return errno;
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq_;
  init.qp_type = IBV_QPT_RC;
  init.cap = {4, 1, 1, 1, 0};
  qp_ = g_backend.create_qp(pd, &init);
  return qp_ != nullptr ? connect(context.ports[0]) : errno;
}

int Loopback::connect(const ShadowPort& port) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  if (int rc = modify(&attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS); rc != 0) return rc;
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_256;
  attr.dest_qp_num = qp_->qp_num;
  attr.max_dest_rd_atomic = 1;
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
  attr.timeout = 14;
  attr.retry_cnt = 7;
  attr.max_rd_atomic = 1;
  return modify(&attr,
                IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int Loopback::modify(ibv_qp_attr* attr, int mask) { return g_backend.modify_qp(qp_, attr, IBV_QP_STATE | mask); }

}  // namespace shadowib
