#include "libraries/bsp/adapter.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "libraries/bsp/complain.h"
#include "libraries/bsp/word.h"

namespace shadowib::bsp {
namespace {

constexpr std::uint8_t kPort = 1;

[[noreturn]] void cannot(const char* what) { fail("cannot %s: %s", what, std::strerror(errno)); }

}  // namespace

Adapter::Adapter(int process, int processes) {
  open_device();
  make_queues(process, processes);
}

void Adapter::open_device() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  const char* wanted = std::getenv("SHADOWIB_BSP_DEVICE");
  ibv_device* chosen = nullptr;
  for (int i = 0; list != nullptr && i < count && chosen == nullptr; ++i)
    if (wanted == nullptr || std::strcmp(wanted, ibv_get_device_name(list[i])) == 0) chosen = list[i];
  if (chosen == nullptr)
    fail("%s%s; start the program by bsprun, or see shadowib doctor",
         wanted != nullptr ? "there is no RDMA device " : "there is no RDMA device", wanted != nullptr ? wanted : "");
  context_ = ibv_open_device(chosen);
  if (context_ == nullptr) cannot("open the RDMA device");
  ibv_free_device_list(list);
  if (ibv_query_port(context_, kPort, &port_) != 0) cannot("query the RDMA device's port");
  ibv_device_attr device{};
  if (ibv_query_device(context_, &device) == 0)
    reads_ =
        static_cast<std::uint8_t>(std::clamp(std::min(device.max_qp_rd_atom, device.max_qp_init_rd_atom), 1, 16));
  choose_gid();
}

// Ethernet needs one: the last that has an IPv4 address, as adapters list RoCE v2 behind v1; else the first.
void Adapter::choose_gid() {
  if (port_.link_layer != IBV_LINK_LAYER_ETHERNET) return;
  static constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  for (int i = 0; i < port_.gid_tbl_len && i < 256; ++i) {
    ibv_gid gid;
    if (ibv_query_gid(context_, kPort, i, &gid) != 0 || std::memcmp(gid.raw, kMapped, sizeof(kMapped)) != 0) continue;
    gid_index_ = static_cast<std::uint8_t>(i);
  }
  if (ibv_query_gid(context_, kPort, gid_index_, &gid_) != 0) cannot("query the RDMA device's address");
}

void Adapter::make_queues(int process, int processes) {
  // A peer is one word ahead at most, and may abort.
  receive_depth_ = static_cast<std::uint32_t>(4 * processes + 64);
  pd_ = ibv_alloc_pd(context_);
  channel_ = ibv_create_comp_channel(context_);
  if (pd_ == nullptr || channel_ == nullptr) cannot("make RDMA objects");
  if (::fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0) cannot("make RDMA objects");
  cq_ =
      ibv_create_cq(context_, static_cast<int>(receive_depth_ + processes * (kSendDepth + 2)), nullptr, channel_, 0);
  ibv_srq_init_attr srq{};
  srq.attr.max_wr = receive_depth_;
  srq.attr.max_sge = 1;
  srq_ = cq_ != nullptr ? ibv_create_srq(pd_, &srq) : nullptr;
  if (srq_ == nullptr) cannot("make RDMA queues");
  queue_pairs_.assign(processes, nullptr);
  for (int peer = 0; peer < processes; ++peer) {
    if (peer == process) continue;
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.srq = srq_;
    init.qp_type = IBV_QPT_RC;
    init.cap = {kSendDepth, 0, 1, 0, sizeof(Word)};
    queue_pairs_[peer] = ibv_create_qp(pd_, &init);
    if (queue_pairs_[peer] == nullptr) cannot("make an RDMA queue pair");
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = kPort;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    if (ibv_modify_qp(queue_pairs_[peer], &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0)
      cannot("set up an RDMA queue pair");
  }
}

void Adapter::describe(Greeting* greeting) const {
  greeting->lid = port_.lid;
  greeting->mtu = static_cast<std::uint8_t>(port_.active_mtu);
  greeting->is_ethernet = port_.link_layer == IBV_LINK_LAYER_ETHERNET;
  greeting->gid = gid_;
  greeting->queue_pairs.clear();
  for (const ibv_qp* qp : queue_pairs_) greeting->queue_pairs.push_back(qp != nullptr ? qp->qp_num : 0);
}

void Adapter::connect(int peer, const Greeting& greeting) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = static_cast<ibv_mtu>(std::min<int>(greeting.mtu, port_.active_mtu));
  std::uint32_t own = 0;
  for (std::size_t i = 0; i < queue_pairs_.size(); ++i)
    if (queue_pairs_[i] == nullptr) own = greeting.queue_pairs[i];
  attr.dest_qp_num = own;
  attr.max_dest_rd_atomic = reads_;
  attr.min_rnr_timer = 1;
  attr.ah_attr.port_num = kPort;
  attr.ah_attr.dlid = greeting.lid;
  if (greeting.is_ethernet != 0) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = greeting.gid;
    attr.ah_attr.grh.sgid_index = gid_index_;
    attr.ah_attr.grh.hop_limit = 64;
  }
  if (ibv_modify_qp(queue_pairs_[peer], &attr,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0)
    fail("cannot connect to process %d: %s", peer, std::strerror(errno));
  attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  attr.max_rd_atomic = reads_;
  if (ibv_modify_qp(queue_pairs_[peer], &attr,
                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                        IBV_QP_MAX_QP_RD_ATOMIC) != 0)
    fail("cannot connect to process %d: %s", peer, std::strerror(errno));
}

ibv_mr* Adapter::register_memory(const void* memory, std::size_t bytes, int access) const {
  return ibv_reg_mr(pd_, const_cast<void*>(memory), bytes, access);
}

}  // namespace shadowib::bsp
