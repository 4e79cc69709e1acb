// One side of a connection in a test: device, memory, completion queue and a queue pair, with short names.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "ib2tcp/testing/process.h"

namespace shadowib::ib2tcp::testing {

inline constexpr int kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

struct QpOptions {
  std::uint32_t send_wr = 64, recv_wr = 64, sge = 4, inline_bytes = 64;
  bool signal_all = true;
  int access = kAllAccess;
  std::uint8_t timeout = 8, retry_cnt = 2, rnr_retry = 7, min_rnr_timer = 1, rd_atomic = 4, dest_rd_atomic = 4;
  std::uint32_t psn = 0x123456;
  bool global = false;
  ibv_srq* srq = nullptr;
  ibv_xrcd* xrcd = nullptr;  // of a target (IBV_QPT_XRC_RECV)
  ibv_qp_type type = IBV_QPT_RC;
  std::uint32_t qkey = 0x11111111;  // UD
};

struct Device {
  Process& process;
  ibv_context* context = nullptr;
  ibv_port_attr port{};
  ibv_gid gid{};
  explicit Device(Process& p) : process(p) {
    int n = 0;
    ibv_device** list = p.ops().get_device_list(&n);
    EXPECT_NE(list, nullptr) << p.log();
    context = p.ops().open_device(list[0]);
    EXPECT_NE(context, nullptr);
    p.ops().free_device_list(list);
    EXPECT_EQ(p.ops().query_port(context, 1, &port, sizeof(port)), 0);
    EXPECT_EQ(p.ops().query_gid(context, 1, 0, &gid), 0);
  }
};

struct Endpoint {
  Process& process;
  const BackendOps& ops;
  Device& device;
  ibv_pd* pd;
  ibv_comp_channel* channel;
  ibv_cq* cq;
  ibv_qp* qp = nullptr;
  std::vector<char> memory;
  ibv_mr* mr;
  QpOptions options;

  explicit Endpoint(Device& d, const QpOptions& o = {}, std::size_t bytes = 4 << 20, int cqe = 256)
      : process(d.process), ops(d.process.ops()), device(d), memory(bytes), options(o) {
    pd = ops.alloc_pd(device.context);
    channel = ops.create_comp_channel(device.context);
    cq = ops.create_cq(device.context, cqe, this, channel, 0);
    mr = ops.reg_mr(pd, memory.data(), memory.size(), reinterpret_cast<std::uint64_t>(memory.data()), kAllAccess);
    EXPECT_NE(mr, nullptr);
    qp = make_qp();
  }
  ~Endpoint() {
    if (abandoned) return;
    if (qp != nullptr) {
      EXPECT_EQ(ops.destroy_qp(qp), 0);
    }
    EXPECT_EQ(ops.dereg_mr(mr), 0);
    EXPECT_EQ(ops.destroy_cq(cq), 0);
    EXPECT_EQ(ops.destroy_comp_channel(channel), 0);
    EXPECT_EQ(ops.dealloc_pd(pd), 0);
  }
  bool abandoned = false;

  ibv_qp_init_attr init_attr() const {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.cap = {options.send_wr, options.recv_wr, options.sge, options.sge, options.inline_bytes};
    init.srq = options.srq;
    init.qp_type = options.type;
    init.sq_sig_all = options.signal_all;
    return init;
  }
  ibv_qp* make_qp() {
    ibv_qp_init_attr init = init_attr();
    ibv_qp* made = options.xrcd != nullptr ? ops.create_xrc_target(options.xrcd, &init) : ops.create_qp(pd, &init);
    EXPECT_NE(made, nullptr) << process.last_errno();
    return made;
  }

  int to_init(ibv_qp* q) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = static_cast<unsigned>(options.access);
    attr.qkey = options.qkey;
    const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    return ops.modify_qp(q, &attr, mask | (options.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  }
  int to_rtr(ibv_qp* q, const Device& peer, std::uint32_t peer_qpn) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = peer_qpn;
    attr.rq_psn = options.psn;
    attr.max_dest_rd_atomic = options.dest_rd_atomic;
    attr.min_rnr_timer = options.min_rnr_timer;
    attr.ah_attr.port_num = 1;
    if (options.global) {
      attr.ah_attr.is_global = 1;
      attr.ah_attr.grh.dgid = peer.gid;
    } else {
      attr.ah_attr.dlid = peer.port.lid;
    }
    int mask = IBV_QP_STATE;
    if (options.type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (options.type == IBV_QPT_RC || options.type == IBV_QPT_XRC_RECV)
      mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    return ops.modify_qp(q, &attr, mask);
  }
  int to_rts(ibv_qp* q) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = options.timeout;
    attr.retry_cnt = options.retry_cnt;
    attr.rnr_retry = options.rnr_retry;
    attr.sq_psn = options.psn;
    attr.max_rd_atomic = options.rd_atomic;
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (options.type == IBV_QPT_RC || options.type == IBV_QPT_XRC_SEND)
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if (options.type == IBV_QPT_XRC_RECV) mask |= IBV_QP_TIMEOUT;
    return ops.modify_qp(q, &attr, mask);
  }
  int to_state(ibv_qp_state state) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    return ops.modify_qp(qp, &attr, IBV_QP_STATE);
  }
  ibv_qp_state state() {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(ops.query_qp(qp, &attr, 0, &init), 0);
    return attr.qp_state;
  }

  ibv_sge sge(std::size_t offset, std::uint32_t length) const {
    return {reinterpret_cast<std::uint64_t>(memory.data()) + offset, length, mr->lkey};
  }
  char* at(std::size_t offset) { return memory.data() + offset; }
  std::uint64_t address(std::size_t offset) const { return reinterpret_cast<std::uint64_t>(memory.data()) + offset; }

  int post_recv(std::uint64_t wr_id, std::vector<ibv_sge> list) {
    ibv_recv_wr wr{wr_id, nullptr, list.data(), static_cast<int>(list.size())};
    ibv_recv_wr* bad = nullptr;
    return ops.post_recv(qp, &wr, &bad);
  }
  ibv_send_wr send_wr(std::uint64_t wr_id, ibv_wr_opcode opcode, std::vector<ibv_sge>& list) const {
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.sg_list = list.data();
    wr.num_sge = static_cast<int>(list.size());
    return wr;
  }
  int post(ibv_send_wr wr) {
    ibv_send_wr* bad = nullptr;
    return ops.post_send(qp, &wr, &bad);
  }
  int post_send(std::uint64_t wr_id, std::vector<ibv_sge> list, unsigned flags = 0) {
    ibv_send_wr wr = send_wr(wr_id, IBV_WR_SEND, list);
    wr.send_flags = flags;
    return post(wr);
  }
  ibv_ah* make_ah(const Device& peer) {
    ibv_ah_attr attr{};
    attr.port_num = 1;
    attr.dlid = peer.port.lid;
    if (options.global) {
      attr.is_global = 1;
      attr.grh.dgid = peer.gid;
      attr.grh.hop_limit = 9;
      attr.grh.traffic_class = 0xab;
      attr.grh.flow_label = 0x12345;
    }
    ibv_ah* ah = ops.create_ah(pd, &attr);
    EXPECT_NE(ah, nullptr) << process.last_errno();
    return ah;
  }
  int post_datagram(std::uint64_t wr_id, std::vector<ibv_sge> list, ibv_ah* ah, std::uint32_t qpn, std::uint32_t qkey,
                    ibv_wr_opcode opcode = IBV_WR_SEND, unsigned flags = 0) {
    ibv_send_wr wr = send_wr(wr_id, opcode, list);
    wr.send_flags = flags;
    wr.imm_data = 0x01020304;
    wr.wr.ud = {ah, qpn, qkey};
    return post(wr);
  }
  int post_rdma(std::uint64_t wr_id, ibv_wr_opcode opcode, std::vector<ibv_sge> list, std::uint64_t raddr,
                std::uint32_t rkey, unsigned flags = 0) {
    ibv_send_wr wr = send_wr(wr_id, opcode, list);
    wr.send_flags = flags;
    wr.wr.rdma.remote_addr = raddr;
    wr.wr.rdma.rkey = rkey;
    return post(wr);
  }
  int post_atomic(std::uint64_t wr_id, ibv_wr_opcode opcode, std::vector<ibv_sge> list, std::uint64_t raddr,
                  std::uint32_t rkey, std::uint64_t compare_add, std::uint64_t swap) {
    ibv_send_wr wr = send_wr(wr_id, opcode, list);
    wr.wr.atomic.remote_addr = raddr;
    wr.wr.atomic.rkey = rkey;
    wr.wr.atomic.compare_add = compare_add;
    wr.wr.atomic.swap = swap;
    return post(wr);
  }

  // Polls until a completion comes; a status of IBV_WC_GENERAL_ERR and wr_id ~0 means none came in time. The time
  // only tells a hang from a busy machine; a quarter of it is said in the output, with the side's figures.
  ibv_wc wait(int timeout_ms = 60000) {
    ibv_wc wc{};
    const auto start = std::chrono::steady_clock::now();
    const auto end = start + std::chrono::milliseconds(timeout_ms);
    for (bool said = false;;) {
      if (ops.poll_cq(cq, 1, &wc) == 1) return wc;
      const auto now = std::chrono::steady_clock::now();
      if (now >= end) break;
      if (!said && now - start > (end - start) / 4) {
        said = true;
        char figures[2048] = {};
        ops.describe(figures, sizeof(figures));
        std::printf("no completion for %d ms: %s\n", timeout_ms / 4, figures);
      }
    }
    wc.wr_id = ~0ull;
    wc.status = IBV_WC_GENERAL_ERR;
    return wc;
  }
  int poll() {
    ibv_wc wc;
    return ops.poll_cq(cq, 1, &wc);
  }
};

// The fingerprint of many bytes that another thread may have written. The thread sanitizer, which takes a microsecond
// for each word of a payload, does not look on.
__attribute__((no_sanitize("thread"))) inline std::uint64_t fingerprint(const char* from, std::size_t bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = *reinterpret_cast<const std::uint64_t*>(from + i);
    hash = (hash ^ word) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  return hash;
}

// Brings both queue pairs to RTS against each other.
inline void connect(Endpoint& a, Endpoint& b) {
  ASSERT_EQ(a.to_init(a.qp), 0);
  ASSERT_EQ(b.to_init(b.qp), 0);
  ASSERT_EQ(a.to_rtr(a.qp, b.device, b.qp->qp_num), 0);
  ASSERT_EQ(b.to_rtr(b.qp, a.device, a.qp->qp_num), 0);
  ASSERT_EQ(a.to_rts(a.qp), 0);
  ASSERT_EQ(b.to_rts(b.qp), 0);
}

// "wr_id status", so that one comparison shows both.
inline std::string describe(std::uint64_t wr_id, ibv_wc_status status) {
  return std::to_string(wr_id) + " " + ibv_wc_status_str(status);
}
inline std::string describe(const ibv_wc& wc) { return describe(wc.wr_id, wc.status); }
#define EXPECT_WC(wc, id, want)                        \
  EXPECT_EQ(::shadowib::ib2tcp::testing::describe(wc), \
            ::shadowib::ib2tcp::testing::describe(static_cast<std::uint64_t>(id), want))

}  // namespace shadowib::ib2tcp::testing
