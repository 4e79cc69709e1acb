// Fuzz target: the bytes a peer sends once it is connected.
//
// One process with a queue pair of every kind, whose link reads the input from a stream of the test's. A header in
// the input names queue pairs, keys, addresses and sequence numbers by small numbers, which are turned into what
// exists (or nearly), since no input could guess them. What must hold: nothing but the registered memory changes,
// every object can be destroyed afterwards, and the sanitizers find nothing.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "ib2tcp/border.h"
#include "ib2tcp/completion.h"
#include "ib2tcp/device.h"
#include "ib2tcp/engine.h"
#include "ib2tcp/fuzz/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/memory.h"
#include "ib2tcp/memory_window.h"
#include "ib2tcp/multicast.h"
#include "ib2tcp/queue_pair.h"
#include "ib2tcp/shared_receive_queue.h"
#include "ib2tcp/xrc.h"

namespace shadowib::ib2tcp {
namespace {

constexpr std::uint16_t kPeerLid = 7, kOtherLid = 8;  // of no cluster, and of another one
constexpr std::uint32_t kPeerQpn = 0x77;
constexpr std::size_t kPageBytes = 4096;
constexpr union ibv_gid kGroup = {.raw = {0xff, 0x12}};
constexpr std::uint16_t kGroupLid = 0xc001;

void require(bool condition) {
  if (!condition) abort();
}

// The input with its small numbers replaced, given out in pieces of changing size, by copies or in place; then the
// end.
class Given final : public Stream {
 public:
  Given(std::vector<std::uint8_t> bytes, std::size_t piece, bool in_place)
      : bytes_(std::move(bytes)), piece_(piece), in_place_(in_place) {}
  const StreamTraits& traits() const override { return in_place_ ? kInPlace : kTraits; }
  const char* peek(std::size_t* bytes) override {
    *bytes = std::min(piece_, bytes_.size() - at_);
    return reinterpret_cast<const char*>(bytes_.data()) + at_;
  }
  // What was given back may be the peer's next bytes.
  void consume(std::size_t bytes) override {
    memset(bytes_.data() + at_, 'z', bytes);
    at_ += bytes;
  }
  ssize_t writev(const iovec* parts, int count) override {
    ssize_t n = 0;
    for (int i = 0; i < count; ++i) n += static_cast<ssize_t>(parts[i].iov_len);
    return n;
  }
  ssize_t readv(const iovec* parts, int count) override {
    if (at_ == bytes_.size()) {
      errno = EPIPE;
      return -1;
    }
    std::size_t left = std::min(piece_, bytes_.size() - at_);
    ssize_t n = 0;
    for (int i = 0; i < count && left > 0; ++i) {
      const std::size_t step = std::min(left, parts[i].iov_len);
      memcpy(parts[i].iov_base, bytes_.data() + at_, step);
      at_ += step;
      left -= step;
      n += static_cast<ssize_t>(step);
    }
    return n;
  }
  bool readable() override { return true; }
  int fd() const override { return -1; }
  bool prepare_sleep(bool) override { return false; }
  void wake_up() override {}
  void on_fd_ready() override {}
  void close() override {}

 private:
  static constexpr StreamTraits kTraits = {
      .name = "input", .copy_limit = 512, .read_ahead = true, .memory_readable = true};
  static constexpr StreamTraits kInPlace = {
      .name = "input", .copy_limit = 512, .read_ahead = false, .memory_readable = true, .in_place = true};
  std::vector<std::uint8_t> bytes_;
  std::size_t at_ = 0, piece_;
  const bool in_place_;
};

class World {
 public:
  World() {
    memory_ = static_cast<char*>(aligned_alloc(kPageBytes, 3 * kPageBytes));
    start_fuzz_host(kPeerLid);
    publish_fuzz_peer(kOtherLid, 2, 2);
    allow(1);
    int count = 0;
    ibv_device** list = get_device_list(&count);
    require(list != nullptr && count > 0);
    context_ = open_device(list[0]);
    require(context_ != nullptr);
    free_device_list(list);
  }

  // Messages of another cluster, up to that number, may be delivered.
  static void allow(std::uint32_t sn) {
    ClusterState state{};
    state.sn = 2;
    state.depends[1] = sn;
    require(set_cluster(&state) == 0);
  }

  void run(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return;
    memset(memory_, 'c', 3 * kPageBytes);
    lid_ = (data[0] & 2) != 0 ? kOtherLid : kPeerLid;
    allow(1);
    make();
    Link* link = qps_[0]->link();
    require(link != nullptr);
    Stream* input = new Given(turned(data + 1, size - 1), 1 + data[0] * 7u, (data[0] & 1) != 0);
    {
      EngineGuard guard;
      link->abandon_attempt();
      link->on_connected(input, false);
    }
    for (int turn = 0; turn < 200000 && (link->stream() == input || link->held_stamp() != nullptr); ++turn) {
      if (link->held_stamp() != nullptr) allow(link->held_stamp()->sn);
      EngineGuard guard;
      g_engine->turn(turn % 16 == 0);
    }
    require(link->stream() != input);
    for (std::size_t i = 0; i < kPageBytes; ++i) require(memory_[i] == 'c' && memory_[2 * kPageBytes + i] == 'c');
    destroy();
  }

 private:
  ibv_qp* create(ibv_qp_type type, ibv_srq* srq) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.srq = srq;
    init.qp_type = type;
    init.cap = {8, 8, 2, 2, 16};
    ibv_qp* qp = type == IBV_QPT_XRC_RECV ? create_xrc_target(xrcd_, &init) : create_qp(pd_, &init);
    require(qp != nullptr);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qkey = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    const int own = type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    require(modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | own) == 0);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = kPeerQpn;
    attr.max_dest_rd_atomic = 2;
    attr.ah_attr.dlid = lid_;
    int mask = IBV_QP_STATE;
    if (type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    require(modify_qp(qp, &attr, mask) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 2;
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    if (type == IBV_QPT_XRC_RECV) mask |= IBV_QP_TIMEOUT;
    require(modify_qp(qp, &attr, mask) == 0);
    return qp;
  }

  // Receives at every queue, and requests whose answers the input may hold.
  void fill(ibv_qp* qp) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory_) + kPageBytes, 1000, mr_->lkey};
    ibv_recv_wr receive{1, nullptr, &sge, 1}, *bad_receive;
    if (qp->srq == nullptr && qp->qp_type != IBV_QPT_XRC_RECV)
      for (int i = 0; i < 3; ++i) post_recv(qp, &receive, &bad_receive);
    if (qp->qp_type != IBV_QPT_RC && qp->qp_type != IBV_QPT_XRC_SEND) return;
    for (ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE}) {
      ibv_send_wr wr{}, *bad;
      ibv_sge piece{sge.addr + 2048, opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8u : 64u, mr_->lkey};
      wr.sg_list = &piece;
      wr.num_sge = 1;
      wr.opcode = opcode;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.qp_type.xrc.remote_srqn = 1;
      post_send(qp, &wr, &bad);
    }
  }

  // A part of the region, which the input may reach by another key and take away.
  void bind_window(ibv_qp* qp) {
    ibv_send_wr wr{}, *bad;
    wr.opcode = IBV_WR_BIND_MW;
    wr.bind_mw.mw = mw_;
    wr.bind_mw.rkey = mw_->rkey;
    const int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    wr.bind_mw.bind_info = {mr_, reinterpret_cast<std::uint64_t>(memory_) + kPageBytes, 512, access};
    require(post_send(qp, &wr, &bad) == 0);
  }

  void make() {
    pd_ = alloc_pd(context_);
    cq_ = create_cq(context_, 64, nullptr, nullptr, 0);
    char* region = memory_ + kPageBytes;
    mr_ = reg_mr(pd_, region, kPageBytes, reinterpret_cast<std::uint64_t>(region),
                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
    ibv_srq_init_attr init{};
    init.attr = {4, 1, 0};
    srq_ = create_srq(pd_, &init);
    xrcd_ = open_xrcd(context_, -1, 0, nullptr);
    other_xrcd_ = open_xrcd(context_, -1, 0, nullptr);
    require(pd_ != nullptr && cq_ != nullptr && mr_ != nullptr && srq_ != nullptr && xrcd_ && other_xrcd_);
    for (ibv_xrcd* xrcd : {xrcd_, xrcd_, other_xrcd_}) xrc_srqs_.push_back(create_xrc_srq(pd_, xrcd, cq_, &init));
    ibv_sge sge{reinterpret_cast<std::uint64_t>(region), 500, mr_->lkey};
    ibv_recv_wr receive{2, nullptr, &sge, 1}, *bad;
    for (ibv_srq* srq : {srq_, srq_, xrc_srqs_[0], xrc_srqs_[0], xrc_srqs_[1], xrc_srqs_[2]})
      post_srq_recv(srq, &receive, &bad);
    mw_ = alloc_mw(pd_, IBV_MW_TYPE_2);
    require(mw_ != nullptr);
    for (auto [type, srq] : {std::pair{IBV_QPT_RC, static_cast<ibv_srq*>(nullptr)},
                             {IBV_QPT_RC, srq_},
                             {IBV_QPT_UC, nullptr},
                             {IBV_QPT_UD, nullptr},
                             {IBV_QPT_UD, srq_},
                             {IBV_QPT_XRC_RECV, nullptr},
                             {IBV_QPT_XRC_SEND, nullptr}}) {
      ibv_qp* qp = create(type, srq);
      if (qps_.empty()) bind_window(qp);
      fill(qp);
      if (type == IBV_QPT_UD) require(attach_mcast(qp, &kGroup, kGroupLid) == 0);
      qps_.push_back(reinterpret_cast<Qp*>(qp));
    }
  }

  void destroy() {
    for (Qp* qp : qps_)
      if (!qp->has_peer()) require(detach_mcast(&qp->verbs, &kGroup, kGroupLid) == 0);
    for (Qp* qp : qps_) require(destroy_qp(&qp->verbs) == 0);
    qps_.clear();
    for (ibv_srq* srq : xrc_srqs_) require(destroy_srq(srq) == 0);
    xrc_srqs_.clear();
    require(close_xrcd(xrcd_) == 0 && close_xrcd(other_xrcd_) == 0);
    require(dealloc_mw(mw_) == 0 && destroy_srq(srq_) == 0 && dereg_mr(mr_) == 0 && destroy_cq(cq_) == 0 &&
            dealloc_pd(pd_) == 0);
    ibv_async_event event;
    while (get_async_event(context_, &event) == 0) continue;
  }

  std::vector<std::uint8_t> turned(const std::uint8_t* data, std::size_t size) const {
    std::vector<std::uint8_t> bytes(data, data + size);
    for (std::size_t at = 0; at + sizeof(FrameHeader) <= bytes.size();) {
      FrameHeader header;
      memcpy(&header, bytes.data() + at, sizeof(header));
      if (header.dest_qpn < qps_.size()) header.dest_qpn = qps_[header.dest_qpn]->verbs.qp_num;
      if (header.src_qpn == 0) header.src_qpn = kPeerQpn;
      if (header.rkey == 0) header.rkey = mr_->rkey;
      if (header.rkey == 1) header.rkey = mw_->rkey;
      if (lid_ == kOtherLid && header.sn == 0 && !is_datagram(header.opcode)) header.sn = 1;
      if (header.raddr < 2 * kPageBytes && !is_datagram(header.opcode))
        header.raddr += reinterpret_cast<std::uint64_t>(memory_) + kPageBytes;
      if (is_datagram(header.opcode) && header.dest_qpn == 0x80) {
        header.dest_qpn = kMulticastQpn;
        header.operand2 = header.operand2 == 0 ? kGroup.global.subnet_prefix : kGroupLid;
      }
      if (header.srqn >= 1 && header.srqn <= xrc_srqs_.size() && !is_datagram(header.opcode))
        (void)get_srq_num(xrc_srqs_[header.srqn - 1], &header.srqn);
      memcpy(bytes.data() + at, &header, sizeof(header));
      at += sizeof(header) + payload_bytes(header);
    }
    return bytes;
  }

  std::uint16_t lid_ = kPeerLid;
  char* memory_;  // a page before and one behind the registered one
  ibv_context* context_;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_mw* mw_ = nullptr;
  ibv_srq* srq_ = nullptr;
  ibv_xrcd *xrcd_ = nullptr, *other_xrcd_ = nullptr;
  std::vector<ibv_srq*> xrc_srqs_;  // of the first domain; the last of the other
  std::vector<Qp*> qps_;
};

}  // namespace
}  // namespace shadowib::ib2tcp

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static auto& world = *new shadowib::ib2tcp::World;
  world.run(data, size);
  return 0;
}
