// Extended reliable connections: which queue gets a message, whose memory requests reach, what an empty queue holds
// back, numbers that name nothing.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

// A shared receive queue of a domain, with a completion queue and memory of its own.
struct Named {
  Device& device;
  const BackendOps& ops;
  ibv_pd* pd;
  ibv_cq* cq;
  std::vector<char> memory;
  ibv_mr* mr;
  ibv_srq* srq;
  std::uint32_t number = 0;

  Named(Device& d, ibv_xrcd* xrcd, std::size_t bytes = 1 << 16)
      : device(d), ops(d.process.ops()), pd(ops.alloc_pd(d.context)), memory(bytes) {
    cq = ops.create_cq(d.context, 64, nullptr, nullptr, 0);
    mr = ops.reg_mr(pd, memory.data(), memory.size(), address(0), kAllAccess);
    ibv_srq_init_attr init{};
    init.attr.max_wr = 16;
    init.attr.max_sge = 1;
    srq = ops.create_xrc_srq(pd, xrcd, cq, &init);
    EXPECT_NE(srq, nullptr);
    EXPECT_EQ(ops.get_srq_num(srq, &number), 0);
  }
  ~Named() {
    if (srq != nullptr) {
      EXPECT_EQ(ops.destroy_srq(srq), 0);
    }
    EXPECT_EQ(ops.dereg_mr(mr), 0);
    EXPECT_EQ(ops.destroy_cq(cq), 0);
    EXPECT_EQ(ops.dealloc_pd(pd), 0);
  }
  std::uint64_t address(std::size_t offset) const { return reinterpret_cast<std::uint64_t>(memory.data()) + offset; }
  void post(std::uint64_t wr_id, std::size_t offset = 0, std::uint32_t length = 1000) {
    ibv_sge sge{address(offset), length, mr->lkey};
    ibv_recv_wr wr{wr_id, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    EXPECT_EQ(ops.post_srq_recv(srq, &wr, &bad), 0);
  }
  ibv_wc wait() {
    ibv_wc wc{};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
    while (std::chrono::steady_clock::now() < end)
      if (ops.poll_cq(cq, 1, &wc) == 1) return wc;
    wc.wr_id = ~0ull;
    wc.status = IBV_WC_GENERAL_ERR;
    return wc;
  }
  int poll() {
    ibv_wc wc;
    return ops.poll_cq(cq, 1, &wc);
  }
};

struct Domain {
  const BackendOps& ops;
  ibv_xrcd* xrcd;
  explicit Domain(Device& d, ibv_xrcd* shared = nullptr)
      : ops(d.process.ops()), xrcd(ops.open_xrcd(d.context, -1, O_CREAT, shared)) {
    EXPECT_NE(xrcd, nullptr);
  }
  ~Domain() { EXPECT_EQ(ops.close_xrcd(xrcd), 0); }
};

QpOptions initiator() {
  QpOptions o;
  o.type = IBV_QPT_XRC_SEND;
  return o;
}
QpOptions target(const Domain& domain) {
  QpOptions o;
  o.type = IBV_QPT_XRC_RECV;
  o.xrcd = domain.xrcd;
  return o;
}

int post_to(Endpoint& from, std::uint32_t srqn, std::uint64_t wr_id, ibv_wr_opcode opcode = IBV_WR_SEND,
            const Named* memory = nullptr, std::uint32_t length = 100) {
  std::vector<ibv_sge> list{from.sge(0, length)};
  ibv_send_wr wr = from.send_wr(wr_id, opcode, list);
  wr.imm_data = 0x01020304;
  if (memory != nullptr) {
    wr.wr.rdma.remote_addr = memory->address(8000);
    wr.wr.rdma.rkey = memory->mr->rkey;
  }
  wr.qp_type.xrc.remote_srqn = srqn;
  return from.post(wr);
}

std::vector<int> events(Device& device) {
  std::vector<int> types;
  const BackendOps& ops = device.process.ops();
  for (ibv_async_event event; ops.get_async_event(device.context, &event) == 0;) {
    types.push_back(event.event_type);
    ops.ack_async_event(&event);
  }
  return types;
}

TEST_P(Conformance, XrcMessagesGoToTheQueueTheyName) {
  Domain domain(b());
  Named one(b(), domain.xrcd), two(b(), domain.xrcd);
  Endpoint x(a(), initiator()), y(b(), target(domain));
  connect(x, y);
  ASSERT_NE(one.number, two.number);
  std::uint64_t id = 0;
  for (ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM})
    for (Named* to : {&two, &one}) {
      ++id;
      to->post(id);
      std::memset(x.at(0), static_cast<int>(id), 100);
      ASSERT_EQ(post_to(x, to->number, 10 + id, opcode, to), 0);
      const ibv_wc wc = to->wait();
      EXPECT_WC(wc, id, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.qp_num, y.qp->qp_num);
      EXPECT_EQ(wc.src_qp, x.qp->qp_num);
      EXPECT_EQ(wc.byte_len, 100u);
      EXPECT_EQ(wc.imm_data, opcode == IBV_WR_SEND ? 0u : 0x01020304u);
      EXPECT_EQ(wc.opcode, opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
      EXPECT_EQ(to->memory[opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? 8099 : 99], static_cast<char>(id));
      EXPECT_WC(x.wait(), 10 + id, IBV_WC_SUCCESS);
    }
  EXPECT_EQ(one.poll() + two.poll() + y.poll(), 0);
}

// Memory is found in the protection domain of the queue that is named, not of another in the same XRC domain.
TEST_P(Conformance, XrcRequestsReachTheMemoryBesideTheQueueTheyName) {
  Domain domain(b());
  Named one(b(), domain.xrcd), two(b(), domain.xrcd);
  Endpoint x(a(), initiator()), y(b(), target(domain));
  connect(x, y);
  std::memset(x.at(0), 7, 100);
  ASSERT_EQ(post_to(x, one.number, 1, IBV_WR_RDMA_WRITE, &one), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(one.memory[8099], 7);
  std::memset(&two.memory[8000], 9, 100);
  ASSERT_EQ(post_to(x, two.number, 2, IBV_WR_RDMA_READ, &two), 0);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(*x.at(99), 9);
  std::vector<ibv_sge> list{x.sge(0, 8)};
  ibv_send_wr add = x.send_wr(3, IBV_WR_ATOMIC_FETCH_AND_ADD, list);
  add.wr.atomic = {two.address(8000), 1, 0, two.mr->rkey};
  add.qp_type.xrc.remote_srqn = two.number;
  ASSERT_EQ(x.post(add), 0);
  EXPECT_WC(x.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_EQ(two.memory[8000], 10);
  ASSERT_EQ(post_to(x, one.number, 4, IBV_WR_RDMA_WRITE, &two), 0);
  EXPECT_WC(x.wait(), 4, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(two.memory[8001], 9);
  (void)events(b());
}

TEST_P(Conformance, AnXrcQueueWithoutReceivesHoldsBackWhatIsBehind) {
  Domain domain(b());
  Named one(b(), domain.xrcd), two(b(), domain.xrcd);
  Endpoint x(a(), initiator()), y(b(), target(domain)), v(a(), initiator()), w(b(), target(domain));
  connect(x, y);
  connect(v, w);
  two.post(20);
  two.post(21);
  const long before = refusals(y);
  ASSERT_EQ(post_to(x, one.number, 1), 0);
  ASSERT_EQ(post_to(x, two.number, 2), 0);
  while (refusals(y) == before)
    for (Endpoint* e : {&x, &y}) EXPECT_EQ(e->poll(), 0);
  ASSERT_EQ(post_to(v, two.number, 3), 0);  // another connection is not held back
  const ibv_wc wc = two.wait();
  EXPECT_WC(wc, 20, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.qp_num, w.qp->qp_num);
  EXPECT_WC(v.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_EQ(two.poll() + one.poll() + x.poll(), 0);
  one.post(10);
  EXPECT_WC(one.wait(), 10, IBV_WC_SUCCESS);
  EXPECT_WC(two.wait(), 21, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
}

TEST_P(Conformance, AnXrcNumberThatNamesNoQueueIsAnInvalidRequest) {
  Domain domain(b()), other(b());
  Named good(b(), domain.xrcd), foreign(b(), other.xrcd);
  std::uint32_t gone;
  {
    Named short_lived(b(), domain.xrcd);
    gone = short_lived.number;
  }
  Endpoint v(a(), initiator()), w(b(), target(domain));
  connect(v, w);
  good.post(1);
  foreign.post(2);
  for (std::uint32_t number : {0u, 1u, gone, foreign.number, 0xffffffu, good.number | 0x1000000u})
    for (ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
      Endpoint x(a(), initiator()), y(b(), target(domain));
      connect(x, y);
      (void)events(b());
      ASSERT_EQ(post_to(x, number, 3, opcode, &good), 0);
      ASSERT_EQ(post_to(x, good.number, 4), 0);
      EXPECT_WC(x.wait(), 3, IBV_WC_REM_INV_REQ_ERR) << number << " " << opcode;
      EXPECT_WC(x.wait(), 4, IBV_WC_WR_FLUSH_ERR);
      EXPECT_EQ(y.state(), IBV_QPS_ERR);
      EXPECT_EQ(events(b()), (std::vector<int>{IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_LAST_WQE_REACHED}));
    }
  ASSERT_EQ(post_to(v, good.number, 5), 0);
  EXPECT_WC(good.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(v.wait(), 5, IBV_WC_SUCCESS);
  EXPECT_EQ(foreign.poll(), 0);
}

TEST_P(Conformance, AnXrcQueueMayGoWhileAMessageIsOnItsWay) {
  constexpr std::uint32_t kBytes = 32 << 20;  // more than any transport holds
  Domain domain(b());
  Named queue(b(), domain.xrcd, kBytes), other(b(), domain.xrcd);
  Endpoint x(a(), initiator(), kBytes), y(b(), target(domain)), v(a(), initiator()), w(b(), target(domain));
  connect(x, y);
  connect(v, w);
  other.post(1);
  other.post(2);
  ASSERT_EQ(post_to(v, other.number, 1), 0);  // brings the connection up
  EXPECT_WC(other.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(v.wait(), 1, IBV_WC_SUCCESS);
  (void)events(b());
  x.process.stop_helper();
  if (&x.process != &y.process) y.process.stop_helper();
  std::memset(x.at(0), 'c', kBytes);
  queue.post(6, 0, kBytes);
  ASSERT_EQ(post_to(x, queue.number, 2, IBV_WR_SEND, nullptr, kBytes), 0);
  while (queue.memory[0] == 0) {
    x.ops.progress(0);
    if (queue.memory[0] == 0) y.ops.progress(0);
  }
  ASSERT_EQ(queue.memory[kBytes - 1], 0) << "the message is to be on its way";
  ASSERT_EQ(queue.ops.destroy_srq(queue.srq), 0);
  queue.srq = nullptr;
  x.process.start_helper();
  if (&x.process != &y.process) y.process.start_helper();
  EXPECT_WC(x.wait(), 2, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(events(b()), (std::vector<int>{IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_LAST_WQE_REACHED}));
  EXPECT_EQ(queue.poll(), 0);
  ASSERT_EQ(post_to(v, other.number, 3), 0);
  EXPECT_WC(other.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(v.wait(), 3, IBV_WC_SUCCESS);
}

TEST_P(Conformance, AnXrcTargetInErrorLeavesReceivesToOthers) {
  Domain domain(b());
  Named queue(b(), domain.xrcd);
  Endpoint x(a(), initiator()), y(b(), target(domain)), v(a(), initiator()), w(b(), target(domain));
  connect(x, y);
  connect(v, w);
  queue.post(7);
  (void)events(b());
  ASSERT_EQ(y.to_state(IBV_QPS_ERR), 0);
  EXPECT_EQ(events(b()), std::vector<int>{IBV_EVENT_QP_LAST_WQE_REACHED});
  ASSERT_EQ(x.to_state(IBV_QPS_ERR), 0);
  EXPECT_EQ(events(a()), std::vector<int>{}) << "an initiator takes no receives";
  ASSERT_EQ(post_to(x, queue.number, 1), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_WR_FLUSH_ERR);
  ibv_srq_attr attr{};
  attr.srq_limit = 1;
  ASSERT_EQ(queue.ops.modify_srq(queue.srq, &attr, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(post_to(v, queue.number, 2), 0);
  EXPECT_WC(queue.wait(), 7, IBV_WC_SUCCESS);
  EXPECT_WC(v.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(events(b()), std::vector<int>{IBV_EVENT_SRQ_LIMIT_REACHED});
}

// Who has had the answer to a message finds the message's own completion there too.
TEST_P(Conformance, TheAnswerToAnXrcMessageComesBehindItsAcknowledgement) {
  Domain domain_a(a()), domain_b(b());
  Named at_a(a(), domain_a.xrcd), at_b(b(), domain_b.xrcd);
  Endpoint x(a(), initiator()), y(b(), target(domain_b)), v(b(), initiator()), w(a(), target(domain_a));
  connect(x, y);
  connect(v, w);
  for (std::uint64_t id = 0; id < 200; ++id) {
    at_a.post(id);
    at_b.post(id);
    ASSERT_EQ(post_to(x, at_b.number, id), 0);
    ASSERT_EQ(at_b.wait().wr_id, id);
    ASSERT_EQ(post_to(v, at_a.number, id), 0);
    ASSERT_EQ(at_a.wait().wr_id, id);
    ASSERT_EQ(x.poll(), 1) << id;
    ASSERT_EQ(v.wait().wr_id, id);
  }
}

// What a target has received stays when it goes.
TEST_P(Conformance, XrcCompletionsOutliveTheirTarget) {
  Domain domain(b());
  Named queue(b(), domain.xrcd);
  Endpoint x(a(), initiator()), y(b(), target(domain));
  connect(x, y);
  queue.post(1);
  ASSERT_EQ(post_to(x, queue.number, 1), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  const std::uint32_t number = y.qp->qp_num;
  ASSERT_EQ(y.to_state(IBV_QPS_RESET), 0);
  ASSERT_EQ(y.ops.destroy_qp(y.qp), 0);
  y.qp = nullptr;
  const ibv_wc wc = queue.wait();
  EXPECT_WC(wc, 1, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.qp_num, number);
}

// Neither end of an XRC connection understands the other kind.
TEST_P(Conformance, AnXrcEndAndAnRcEndAreNoConnection) {
  Domain domain(b());
  Named queue(b(), domain.xrcd);
  queue.post(1);
  Endpoint x(a(), initiator()), y(b()), v(a()), w(b(), target(domain));
  connect(x, y);
  connect(v, w);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(post_to(x, 0, 1), 0);
  ASSERT_EQ(v.post_send(2, {v.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_RETRY_EXC_ERR);
  EXPECT_WC(v.wait(), 2, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(y.poll() + queue.poll(), 0);
}

TEST_P(Conformance, RulesOfXrcDomains) {
  const BackendOps& ops = b().process.ops();
  ibv_device_attr device{};
  ASSERT_EQ(ops.query_device(b().context, &device), 0);
  EXPECT_NE(device.device_cap_flags & IBV_DEVICE_XRC, 0u);
  EXPECT_EQ(ops.open_xrcd(b().context, 0, 0, nullptr), nullptr) << "there is none to open";
  EXPECT_EQ(b().process.last_errno(), EAGAIN);
  EXPECT_EQ(ops.open_xrcd(b().context, -1, O_TRUNC, nullptr), nullptr);
  Domain first(b());
  EXPECT_EQ(ops.open_xrcd(b().context, 0, O_CREAT | O_EXCL, first.xrcd), nullptr);
  EXPECT_EQ(b().process.last_errno(), EINVAL);
  Domain second(b(), first.xrcd), other(b());
  {
    Named queue(b(), first.xrcd);
    EXPECT_EQ(ops.close_xrcd(first.xrcd), EBUSY);
    EXPECT_EQ(ops.destroy_cq(queue.cq), EBUSY);
    Endpoint x(a(), initiator()), y(b(), target(second));
    EXPECT_EQ(ops.close_xrcd(second.xrcd), EBUSY);
    connect(x, y);
    queue.post(1);
    ASSERT_EQ(post_to(x, queue.number, 1), 0);  // the queue was made by one handle, the target by the other
    EXPECT_WC(queue.wait(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  }
  ibv_srq_init_attr init{};
  init.attr.max_wr = init.attr.max_sge = 1;
  ibv_pd* pd = ops.alloc_pd(b().context);
  ibv_srq* basic = ops.create_srq(pd, &init);
  std::uint32_t number = 0;
  EXPECT_EQ(ops.get_srq_num(basic, &number), EINVAL);
  EXPECT_EQ(ops.destroy_srq(basic), 0);
  EXPECT_EQ(ops.dealloc_pd(pd), 0);
}

TEST_P(Conformance, RulesOfXrcQueuePairs) {
  Domain domain(b());
  Named queue(b(), domain.xrcd);
  Endpoint x(a(), initiator()), y(b(), target(domain));
  EXPECT_EQ(x.to_rtr(x.qp, b(), y.qp->qp_num), EINVAL);
  connect(x, y);
  EXPECT_EQ(x.post_recv(1, {}), EINVAL);
  EXPECT_EQ(y.post_recv(1, {}), EINVAL);
  EXPECT_EQ(post_to(y, queue.number, 1), EINVAL);
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  ASSERT_EQ(x.ops.query_qp(x.qp, &attr, 0, &init), 0);
  EXPECT_EQ(init.qp_type, IBV_QPT_XRC_SEND);
  EXPECT_EQ(init.recv_cq, nullptr);
  EXPECT_EQ(attr.cap.max_recv_wr, 0u);
  ASSERT_EQ(y.ops.query_qp(y.qp, &attr, 0, &init), 0);
  EXPECT_EQ(init.qp_type, IBV_QPT_XRC_RECV);
  EXPECT_EQ(init.send_cq, nullptr);
  EXPECT_EQ(attr.cap.max_send_wr, 0u);
  EXPECT_EQ(attr.dest_qp_num, x.qp->qp_num);
  init = x.init_attr();
  EXPECT_EQ(y.ops.create_xrc_target(domain.xrcd, &init), nullptr);
  EXPECT_EQ(y.process.last_errno(), EINVAL);
  init = y.init_attr();
  EXPECT_EQ(y.ops.create_qp(y.pd, &init), nullptr);
  EXPECT_EQ(y.process.last_errno(), EINVAL);
}

TEST_P(Conformance, AttributesOfXrcQueuePairs) {
  Domain domain(b());
  Endpoint x(a(), initiator()), y(b(), target(domain));
  ASSERT_EQ(x.to_init(x.qp), 0);
  ASSERT_EQ(y.to_init(y.qp), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.ah_attr.dlid = b().port.lid;
  attr.min_rnr_timer = 12;
  const int common = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  const int of_targets = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  EXPECT_EQ(y.ops.modify_qp(y.qp, &attr, common), EINVAL);
  EXPECT_EQ(x.ops.modify_qp(x.qp, &attr, common | IBV_QP_TIMEOUT), EINVAL);
  EXPECT_EQ(x.ops.modify_qp(x.qp, &attr, common | of_targets), 0) << "what is the target's is not looked at";
  EXPECT_EQ(y.ops.modify_qp(y.qp, &attr, common | of_targets), 0);
  attr.qp_state = IBV_QPS_RTS;
  attr.retry_cnt = 3;
  const int of_initiators = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  EXPECT_EQ(x.ops.modify_qp(x.qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN), EINVAL);
  for (Endpoint* e : {&x, &y})
    EXPECT_EQ(e->ops.modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN | of_initiators), 0);
  ibv_qp_init_attr init{};
  ASSERT_EQ(x.ops.query_qp(x.qp, &attr, 0, &init), 0);
  EXPECT_EQ(attr.min_rnr_timer, 0);
  EXPECT_EQ(attr.retry_cnt, 3);
  ASSERT_EQ(y.ops.query_qp(y.qp, &attr, 0, &init), 0);
  EXPECT_EQ(attr.min_rnr_timer, 12);
  EXPECT_EQ(attr.retry_cnt, 0);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
