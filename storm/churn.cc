#include "storm/churn.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "storm/objects.h"
#include "storm/sabotage.h"

namespace storm {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

// A region that is registered again, and an address handle.
class Loose final : public Trinket {
 public:
  Loose(Adapter& adapter, Dice& dice)
      : memory_(4096 + dice.below(60000)),
        own_domain_(made(ibv_alloc_pd(adapter.context()), "ibv_alloc_pd")),
        region_(made(ibv_reg_mr(own_domain_.get(), memory_.data(), memory_.size(), kAccess), "ibv_reg_mr")) {
    Address here{};
    adapter.describe(&here);
    ibv_ah_attr attr = adapter.route_to(here, dice.percent(50));
    handle_.reset(made(ibv_create_ah(own_domain_.get(), &attr), "ibv_create_ah"));
  }
  bool step(Dice& dice) override {
    if (region_->pd != own_domain_.get() || region_->length != memory_.size() || region_->addr != memory_.data())
      ledger().fault(Fault::kIdentity, "a memory region is not what it was");
    if (dice.percent(20)) register_again();
    return !dice.percent(30);
  }

 private:
  // Not every device can.
  void register_again() {
    access_ ^= IBV_ACCESS_REMOTE_WRITE;
    const int rc = ibv_rereg_mr(region_.get(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, access_);
    if (rc != 0 && errno != EOPNOTSUPP) succeeded(false, "ibv_rereg_mr", 0);
  }

  int access_ = kAccess;
  std::vector<char> memory_;
  Domain own_domain_;
  Region region_;
  AddressHandle handle_;
};

// Queues without queue pairs: resized, modified, asked.
class Queues final : public Trinket {
 public:
  Queues(Adapter& adapter, Dice& dice)
      : entries_(static_cast<int>(dice.between(1, 500))),
        channel_(made(ibv_create_comp_channel(adapter.context()), "ibv_create_comp_channel")),
        queue_(made(ibv_create_cq(adapter.context(), entries_, this, channel_.get(), 0), "ibv_create_cq")) {
    ibv_srq_init_attr attr{};
    attr.attr.max_wr = receives_;
    attr.attr.max_sge = 2;
    shared_.reset(made(ibv_create_srq(adapter.domain(0), &attr), "ibv_create_srq"));
    if (queue_) entries_ = queue_->cqe;
  }
  bool step(Dice& dice) override {
    ibv_wc wc;
    ibv_srq_attr attr{};
    if (queue_->cqe < entries_ || queue_->cq_context != this || ibv_poll_cq(queue_.get(), 1, &wc) != 0)
      ledger().fault(Fault::kIdentity, "a completion queue is not what it was");
    STORM_ZERO(ibv_query_srq(shared_.get(), &attr));
    if (attr.max_wr < receives_) ledger().fault(Fault::kIdentity, "a shared receive queue is smaller than it was");
    if (dice.percent(30)) STORM_ZERO(ibv_req_notify_cq(queue_.get(), 0));
    if (dice.percent(20)) {
      entries_ = static_cast<int>(dice.between(1, 2000));
      const int rc = ibv_resize_cq(queue_.get(), entries_);
      if (rc != 0) succeeded(false, "ibv_resize_cq", rc);
    }
    return !dice.percent(20);
  }

 private:
  static constexpr std::uint32_t receives_ = 30;
  int entries_;
  Channel channel_;
  Queue queue_;
  SharedQueue shared_;
};

// Two queue pairs that are connected to each other step by step, exchange a few messages, some of which find no
// receive, and go: in order, by the error state, or with completions that nobody has polled.
class LittlePair final : public Trinket {
 public:
  LittlePair(Adapter& adapter, Dice& dice, const std::atomic<std::uint64_t>& ticks, std::uint64_t patience)
      : adapter_(adapter),
        ticks_(ticks),
        patience_(patience),
        messages_(dice.below(7)),
        receives_(dice.below(6)),
        memory_(4096),
        region_(made(ibv_reg_mr(adapter.domain(1), memory_.data(), memory_.size(), kAccess), "ibv_reg_mr")),
        queue_(made(ibv_create_cq(adapter.context(), 32, nullptr, nullptr, 0), "ibv_create_cq")) {
    for (auto& end : ends_) {
      ibv_qp_init_attr init{};
      init.send_cq = init.recv_cq = queue_.get();
      init.cap = {8, 8, 1, 1, 0};
      init.qp_type = IBV_QPT_RC;
      init.sq_sig_all = 1;
      end.reset(made(ibv_create_qp(adapter.domain(1), &init), "ibv_create_qp"));
      numbers_[&end - ends_] = end ? end->qp_num : 0;
    }
  }

  bool step(Dice& dice) override {
    if (dice.percent(40)) return true;
    check_states();
    switch (stage_) {
      case 0:
        for (auto& end : ends_) to_init(end.get());
        break;
      case 1:
        connect(1, false);
        post_receives();
        break;
      case 2:
        connect(0, true);
        break;
      case 3:
        connect(1, true);
        break;
      case 4:
        post_sends();
        if (dice.percent(25)) return false;  // and all that is left goes with them
        break;
      case 5:
        poll();
        if (seen_ < due()) return wait_for(due());
        break;
      case 6:
        if (dice.percent(30)) return false;
        for (auto& end : ends_) to_state(end.get(), IBV_QPS_ERR);
        break;
      case 7:
        poll();
        if (seen_ < messages_ + receives_) return wait_for(messages_ + receives_);
        break;
      default: {
        for (auto& end : ends_) end.reset();
        ibv_wc wc;
        if (ibv_poll_cq(queue_.get(), 1, &wc) != 0)
          ledger().fault(Fault::kCompletion, "a completion of a destroyed queue pair: %lx", wc.wr_id);
        return false;
      }
    }
    ++stage_;
    moved_at_ = ticks_;
    return true;
  }

 private:
  // It goes on living.
  bool wait_for(std::uint32_t completions) const {
    if (ticks_ - moved_at_ > patience_)
      ledger().fault(Fault::kHung, "queue pairs %u and %u have %u completions of %u", numbers_[0], numbers_[1], seen_,
                     completions);
    return true;
  }
  std::uint32_t matched() const { return std::min(messages_, receives_); }
  // Completions before the error state.
  std::uint32_t due() const { return 2 * matched(); }

  void check_states() {
    for (int i = 0; i < 2; ++i) {
      ibv_qp_attr attr{};
      ibv_qp_init_attr init{};
      STORM_ZERO(ibv_query_qp(ends_[i].get(), &attr, IBV_QP_STATE | IBV_QP_DEST_QPN, &init));
      if (attr.qp_state != states_[i] || ends_[i]->qp_num != numbers_[i] || init.send_cq != queue_.get() ||
          (states_[i] == IBV_QPS_RTS && attr.dest_qp_num != numbers_[1 - i]))
        ledger().fault(Fault::kIdentity, "queue pair %u is in state %d to %u, and should be in %d to %u", numbers_[i],
                       attr.qp_state, attr.dest_qp_num, states_[i], numbers_[1 - i]);
    }
  }
  int index_of(const ibv_qp* qp) const { return qp == ends_[1].get() ? 1 : 0; }
  void to_init(ibv_qp* qp) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    STORM_ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    states_[index_of(qp)] = IBV_QPS_INIT;
  }
  void to_state(ibv_qp* qp, ibv_qp_state state) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    STORM_ZERO(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
    states_[index_of(qp)] = state;
  }
  void connect(int i, bool to_send) {
    ibv_qp* qp = ends_[i].get();
    ibv_qp_attr attr{};
    if (states_[i] == IBV_QPS_INIT) {
      Address here{};
      adapter_.describe(&here);
      attr.qp_state = IBV_QPS_RTR;
      attr.path_mtu = IBV_MTU_1024;
      attr.dest_qp_num = numbers_[1 - i];
      attr.min_rnr_timer = 3;
      attr.max_dest_rd_atomic = 1;
      attr.ah_attr = adapter_.route_to(here, false);
      STORM_ZERO(ibv_modify_qp(qp, &attr,
                               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
      states_[i] = IBV_QPS_RTR;
    }
    if (!to_send) return;
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 18;
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    STORM_ZERO(ibv_modify_qp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_MAX_QP_RD_ATOMIC));
    states_[i] = IBV_QPS_RTS;
  }
  std::uint64_t* word(std::uint64_t i) { return reinterpret_cast<std::uint64_t*>(memory_.data()) + i; }
  ibv_sge element(std::uint64_t i) { return {reinterpret_cast<std::uintptr_t>(word(i)), 8, region_->lkey}; }
  // Message i is word i and goes to word 100 + i.
  void post_receives() {
    for (std::uint64_t i = 0; i < receives_; ++i) {
      ibv_sge sge = element(100 + i);
      ibv_recv_wr wr{}, *bad;
      wr.wr_id = 100 + i;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      STORM_ZERO(ibv_post_recv(ends_[1].get(), &wr, &bad));
    }
  }
  void post_sends() {
    for (std::uint64_t i = 0; i < messages_; ++i) {
      *word(i) = mix(numbers_[0] + i);
      ibv_sge sge = element(i);
      ibv_send_wr wr{}, *bad;
      wr.wr_id = i;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = IBV_WR_SEND;
      if (i < matched() && saboteur().strikes(Sabotage::kForgotten)) return;
      STORM_ZERO(ibv_post_send(ends_[0].get(), &wr, &bad));
    }
  }
  // What is matched succeeds, the rest is flushed; each of both kinds in its order.
  void poll() {
    ibv_wc wc;
    while (ibv_poll_cq(queue_.get(), 1, &wc) == 1) {
      const bool receive = wc.wr_id >= 100;
      const std::uint64_t i = receive ? wc.wr_id - 100 : wc.wr_id;
      std::uint32_t& next = next_[receive];
      const ibv_wc_status due = i < matched() ? IBV_WC_SUCCESS : IBV_WC_WR_FLUSH_ERR;
      if (i != next || wc.status != due || wc.qp_num != numbers_[receive])
        ledger().fault(Fault::kCompletion, "queue pair %u: %s %lu completes with %s where %u with %s is due",
                       wc.qp_num, receive ? "receive" : "send", i, ibv_wc_status_str(wc.status), next,
                       ibv_wc_status_str(due));
      if (receive && i < matched() && *word(100 + i) != mix(numbers_[0] + i))
        ledger().fault(Fault::kCorrupted, "queue pair %u: message %lu is wrong", wc.qp_num, i);
      ++next;
      ++seen_;
      moved_at_ = ticks_;
    }
  }

  Adapter& adapter_;
  const std::atomic<std::uint64_t>& ticks_;
  const std::uint64_t patience_;
  const std::uint32_t messages_, receives_;
  std::vector<char> memory_;
  Region region_;
  Queue queue_;
  QueuePair ends_[2];
  std::uint32_t numbers_[2];
  ibv_qp_state states_[2] = {IBV_QPS_RESET, IBV_QPS_RESET};
  std::uint32_t next_[2] = {0, 0}, seen_ = 0;
  int stage_ = 0;
  std::uint64_t moved_at_ = 0;  // ticks
};

}  // namespace

void Churn::start() {
  thread_ = std::thread([this] { run(); });
}

void Churn::stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  trinkets_.clear();
}

std::unique_ptr<Trinket> Churn::make() {
  ledger().count(Count::kChurned);
  switch (dice_.below(4)) {
    case 0:
      return std::make_unique<Loose>(adapter_, dice_);
    case 1:
      return std::make_unique<Queues>(adapter_, dice_);
    default:
      return std::make_unique<LittlePair>(adapter_, dice_, ticks_, patience_);
  }
}

void Churn::run() {
  while (!stopping_ && !ledger().failed()) {
    if (trinkets_.size() < kTrinkets) trinkets_.push_back(make());
    if (ledger().failed()) return;
    const std::size_t i = dice_.below(static_cast<std::uint32_t>(trinkets_.size()));
    if (!trinkets_[i]->step(dice_)) {
      std::swap(trinkets_[i], trinkets_.back());
      trinkets_.pop_back();
    }
    ::usleep(500);  // a pace at which most of the time is left to the traffic
  }
}

}  // namespace storm
