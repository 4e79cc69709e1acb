// One end of a connection between two clusters. A test brings it back from a saved state, as a restart does. The
// state is memory, requests without completions, and the backend's state of the border.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ib2tcp/testing/member.h"

namespace shadowib::ib2tcp::testing {

// The saved state.
struct Image {
  ClusterState cluster;
  std::string identity;
  FakeLog log;
  std::string memory;
  std::uint32_t qp_num = 0, mr_key = 0, mw_key = 0, peer_qp_num = 0;
  std::uint16_t peer_lid = 0;
  BorderState border{};
  std::vector<BorderResult> results;
  std::deque<std::function<void(class Side&)>> sends, receives;  // to be posted again
  std::vector<ibv_wc> completions;                               // that the program has not looked at
};

class Side {
 public:
  static constexpr std::size_t kBytes = 1 << 20;

  Side(std::shared_ptr<FakeExchange> exchange, std::string transport, const ClusterState& state,
       std::size_t log_limit, int completions = 1024)
      : exchange_(std::move(exchange)),
        transport_(std::move(transport)),
        completions_(completions),
        memory_(new char[kBytes]()) {
    FakeLog log;
    log.limit = log_limit;
    member_ = std::make_unique<Member>(exchange_, transport_, state, std::string(), log);
    make_objects(nullptr);
  }
  ~Side() { end(); }

  std::uint8_t rnr_retry = 7;                    // for ever; before connect_to()
  bool sends = true;                             // goes to RTS
  bool signals = true;                           // post_send() asks for a completion; else this side does not go back
  ibv_mw_type window_type = IBV_MW_TYPE_2;       // of a restart's window
  std::function<void()> before_opening = [] {};  // of a restart: all is there but the border, which is shut

  Member& member() { return *member_; }
  const BackendOps& ops() { return member_->process.ops(); }
  char* at(std::size_t offset) { return memory_.get() + offset; }
  std::uint64_t number_at(std::size_t offset) { return *reinterpret_cast<volatile std::uint64_t*>(at(offset)); }
  std::uint32_t key() const { return mr_->rkey; }
  std::uint32_t window_key() const { return mw_->rkey; }
  // Makes the window one of another type. Restarts make such a one, too.
  void replace_window(ibv_mw_type type) {
    window_type = type;
    EXPECT_EQ(ops().dealloc_mw(mw_), 0);
    mw_ = ops().alloc_mw(pd_, type);
    ASSERT_NE(mw_, nullptr);
  }
  // A bind of the window, for a queue pair that a test has made.
  void bind_by(ibv_qp* qp, std::uint64_t id, std::size_t offset, std::uint32_t bytes) {
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.opcode = IBV_WR_BIND_MW;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw.mw = mw_;
    wr.bind_mw.rkey = window_key();
    wr.bind_mw.bind_info = {mr_, reinterpret_cast<std::uint64_t>(at(offset)), bytes,
                            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
    ASSERT_EQ(ops().post_send(qp, &wr, &bad), 0);
  }
  ibv_pd* pd() const { return pd_; }
  std::uint32_t qp_num() const { return qp_->qp_num; }
  std::uint16_t lid() { return member_->device->port.lid; }
  ibv_qp_state state() {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    ops().query_qp(qp_, &attr, 0, &init);
    return attr.qp_state;
  }

  void connect_to(std::uint16_t lid, std::uint32_t qp_num) {
    peer_lid_ = lid;
    peer_qp_num_ = qp_num;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = qp_num;
    attr.rq_psn = kPsn;
    attr.max_dest_rd_atomic = 4;
    attr.min_rnr_timer = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.dlid = lid;
    ASSERT_EQ(ops().modify_qp(qp_, &attr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    if (!sends) return;
    attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 8;
    attr.retry_cnt = 2;
    attr.rnr_retry = rnr_retry;
    attr.sq_psn = kPsn;
    attr.max_rd_atomic = 4;
    ASSERT_EQ(ops().modify_qp(qp_, &attr,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                  IBV_QP_MAX_QP_RD_ATOMIC),
              0);
  }

  std::uint64_t executed() { return ops().sq_executed(qp_); }
  // The last word of HostServices::gate_moved, of the other cluster.
  Process::GateMoves gate() {
    std::lock_guard<std::mutex> guard(member_->process.mutex_);
    return member_->process.gates_[1 - member_->state.index];
  }
  // To SQD and back, once all that has left has run.
  void drain() {
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    attr.qp_state = IBV_QPS_SQD;
    ASSERT_EQ(ops().modify_qp(qp_, &attr, IBV_QP_STATE), 0);
    ASSERT_TRUE(eventually([&] { return ops().query_qp(qp_, &attr, 0, &init) == 0 && attr.sq_draining == 0; }));
    attr.qp_state = IBV_QPS_RTS;
    ASSERT_EQ(ops().modify_qp(qp_, &attr, IBV_QP_STATE), 0);
  }
  // Each is posted again by an image in which it has no completion.
  void post_send(std::uint64_t id, ibv_wr_opcode opcode, std::size_t offset, std::uint32_t bytes,
                 std::uint64_t raddr = 0, std::uint32_t rkey = 0, std::uint32_t wrong_lkey = 0) {
    sends_.push_back([=](Side& side) {
      ibv_sge sge{reinterpret_cast<std::uint64_t>(side.at(offset)), bytes, side.mr_->lkey ^ wrong_lkey};
      ibv_send_wr wr{}, *bad = nullptr;
      wr.wr_id = id;
      wr.opcode = opcode;
      wr.send_flags = side.signals ? IBV_SEND_SIGNALED : 0;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.imm_data = static_cast<std::uint32_t>(id);
      if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = raddr;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = 1;
      } else {
        wr.wr.rdma.remote_addr = raddr;
        wr.wr.rdma.rkey = rkey;
      }
      ASSERT_EQ(side.ops().post_send(side.qp_, &wr, &bad), 0);
    });
    sends_.back()(*this);
  }
  // Binds the window to the place, or takes it away. Such a request has no number.
  void post_bind(std::uint64_t id, std::size_t offset, std::uint32_t bytes) {
    sends_.push_back([=](Side& side) { side.bind_by(side.qp_, id, offset, bytes); });
    sends_.back()(*this);
  }
  void post_invalidate(std::uint64_t id) {
    sends_.push_back([=](Side& side) {
      ibv_send_wr wr{}, *bad = nullptr;
      wr.wr_id = id;
      wr.opcode = IBV_WR_LOCAL_INV;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.invalidate_rkey = side.window_key();
      ASSERT_EQ(side.ops().post_send(side.qp_, &wr, &bad), 0);
    });
    sends_.back()(*this);
  }
  void post_receive(std::uint64_t id, std::size_t offset, std::uint32_t bytes) {
    receives_.push_back([=](Side& side) {
      ibv_sge sge{reinterpret_cast<std::uint64_t>(side.at(offset)), bytes, side.mr_->lkey};
      ibv_recv_wr wr{id, nullptr, &sge, 1}, *bad = nullptr;
      ASSERT_EQ(side.ops().post_recv(side.qp_, &wr, &bad), 0);
    });
    receives_.back()(*this);
  }

  // A completion, if there is one.
  bool poll(ibv_wc* wc) {
    if (!saved_completions_.empty()) {
      *wc = saved_completions_.front();
      saved_completions_.pop_front();
      return true;
    }
    if (ops().poll_cq(cq_, 1, wc) != 1) return false;
    take(*wc);
    return true;
  }
  ibv_wc wait() {
    ibv_wc wc{};
    if (!eventually([&] { return poll(&wc); })) wc.wr_id = ~std::uint64_t{0}, wc.status = IBV_WC_GENERAL_ERR;
    return wc;
  }

  // A CLC of its cluster, in which all that is held is delivered. The image is of the moment before.
  Image checkpoint() {
    member_->freeze(true);
    Image image = save();
    ++member_->state.sn;
    image.cluster = member_->state;
    member_->tell();
    member_->freeze(false);
    return image;
  }

  void destroy() {
    EXPECT_EQ(ops().destroy_qp(qp_), 0);
    qp_ = nullptr;
  }
  std::string identity() {
    std::string identity(ops().identity(nullptr, 0), '\0');
    ops().identity(identity.data(), identity.size());
    return identity;
  }

  // As SIGKILL.
  void end() {
    if (member_ == nullptr) return;
    member_->process.kill();
    member_.reset();
  }

  // Its cluster has gone back to the image, in the next incarnation. `others`: the incarnations of all.
  void restart(const Image& image, const std::uint32_t (&incarnations)[kMaxBackendClusters]) {
    end();
    ClusterState state = image.cluster;
    std::copy(std::begin(incarnations), std::end(incarnations), state.incarnations);
    member_ = std::make_unique<Member>(exchange_, transport_, state, image.identity, image.log);
    std::memcpy(memory_.get(), image.memory.data(), kBytes);
    make_objects(&image);
    ASSERT_EQ(ops().restore_border(qp_, &image.border, image.results.data()), 0);
    connect_to(image.peer_lid, image.peer_qp_num);
    sends_ = image.sends;
    receives_ = image.receives;
    saved_completions_.assign(image.completions.begin(), image.completions.end());
    for (const auto& post : receives_) post(*this);
    for (const auto& post : sends_) post(*this);
    before_opening();
    member_->freeze(false);
  }

 private:
  static constexpr std::uint32_t kPsn = 0xfffff0;

  void make_objects(const Image* image) {
    pd_ = ops().alloc_pd(member_->device->context);
    cq_ = ops().create_cq(member_->device->context, completions_, nullptr, nullptr, 0);
    if (image != nullptr) {
      EXPECT_EQ(ops().want_number(kNumberOfMemoryRegion, image->mr_key), 0);
    }
    mr_ = ops().reg_mr(pd_, memory_.get(), kBytes, reinterpret_cast<std::uint64_t>(memory_.get()),
                       kAllAccess | IBV_ACCESS_MW_BIND);
    ASSERT_NE(mr_, nullptr);
    if (image != nullptr) {
      EXPECT_EQ(mr_->rkey, image->mr_key);
    }
    if (image != nullptr) {
      EXPECT_EQ(ops().want_number(kNumberOfMemoryWindow, image->mw_key), 0);
    }
    mw_ = ops().alloc_mw(pd_, window_type);
    ASSERT_NE(mw_, nullptr);
    if (image != nullptr) {
      EXPECT_EQ(mw_->rkey, image->mw_key);
    }
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq_;
    init.cap = {256, 256, 1, 1, 0};
    init.qp_type = IBV_QPT_RC;
    if (image != nullptr) {
      EXPECT_EQ(ops().want_number(kNumberOfQueuePair, image->qp_num), 0);
    }
    qp_ = ops().create_qp(pd_, &init);
    ASSERT_NE(qp_, nullptr);
    if (image != nullptr) {
      EXPECT_EQ(qp_->qp_num, image->qp_num);
    }
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = kAllAccess;
    ASSERT_EQ(ops().modify_qp(qp_, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
  }

  void take(const ibv_wc& wc) {
    auto& queue = (wc.opcode & IBV_WC_RECV) != 0 ? receives_ : sends_;
    ASSERT_FALSE(queue.empty()) << "a completion too many";
    queue.pop_front();
  }

  Image save() {
    Image image;
    ibv_wc wc;
    while (ops().poll_cq(cq_, 1, &wc) == 1) {
      take(wc);
      saved_completions_.push_back(wc);
    }
    image.completions.assign(saved_completions_.begin(), saved_completions_.end());
    image.identity = identity();
    EXPECT_GT(image.identity.size(), 0u);
    image.results.resize(64);
    EXPECT_EQ(ops().border_state(qp_, &image.border, image.results.data(), image.results.size()), 0);
    image.results.resize(image.border.results);
    {
      std::lock_guard<std::mutex> guard(member_->process.log_mutex_);
      image.log = member_->process.fake_log_;
    }
    image.memory.assign(memory_.get(), kBytes);
    image.qp_num = qp_->qp_num;
    image.mr_key = mr_->rkey;
    image.mw_key = mw_->rkey;
    image.peer_lid = peer_lid_;
    image.peer_qp_num = peer_qp_num_;
    image.sends = sends_;
    image.receives = receives_;
    return image;
  }

  std::shared_ptr<FakeExchange> exchange_;
  const std::string transport_;
  const int completions_;  // that fit into its queue
  std::unique_ptr<char[]> memory_;
  std::unique_ptr<Member> member_;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_mw* mw_ = nullptr;
  ibv_qp* qp_ = nullptr;
  std::uint16_t peer_lid_ = 0;
  std::uint32_t peer_qp_num_ = 0;
  std::deque<std::function<void(Side&)>> sends_, receives_;  // without a completion, in order
  std::deque<ibv_wc> saved_completions_;
};

}  // namespace shadowib::ib2tcp::testing
