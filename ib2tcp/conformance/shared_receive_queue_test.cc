// Shared receive queues: who gets which receive, what a queue without receives holds back, limits, errors.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

// The queue, in a protection domain of its own with the memory its receives name.
struct Shared {
  Device& device;
  const BackendOps& ops;
  ibv_pd* pd;
  std::vector<char> memory;
  ibv_mr* mr;
  ibv_srq* srq;

  explicit Shared(Device& d, std::uint32_t max_wr = 16, std::size_t bytes = 1 << 20)
      : device(d), ops(d.process.ops()), pd(ops.alloc_pd(d.context)), memory(bytes) {
    mr = ops.reg_mr(pd, memory.data(), memory.size(), reinterpret_cast<std::uint64_t>(memory.data()), kAllAccess);
    ibv_srq_init_attr init{};
    init.attr.max_wr = max_wr;
    init.attr.max_sge = 1;
    srq = ops.create_srq(pd, &init);
    EXPECT_NE(srq, nullptr);
    ibv_async_event stale;
    while (ops.get_async_event(device.context, &stale) == 0) ops.ack_async_event(&stale);
  }
  ~Shared() {
    EXPECT_EQ(ops.destroy_srq(srq), 0);
    EXPECT_EQ(ops.dereg_mr(mr), 0);
    EXPECT_EQ(ops.dealloc_pd(pd), 0);
  }
  QpOptions options() const {
    QpOptions o;
    o.srq = srq;
    return o;
  }
  int post(std::uint64_t wr_id, std::size_t offset = 0, std::uint32_t length = 1000) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory.data()) + offset, length, mr->lkey};
    ibv_recv_wr wr{wr_id, nullptr, &sge, 1};
    ibv_recv_wr* bad = nullptr;
    const int rc = ops.post_srq_recv(srq, &wr, &bad);
    EXPECT_EQ(bad, rc == 0 ? nullptr : &wr);
    return rc;
  }
  int set_limit(std::uint32_t limit) {
    ibv_srq_attr attr{};
    attr.srq_limit = limit;
    return ops.modify_srq(srq, &attr, IBV_SRQ_LIMIT);
  }
  std::uint32_t limit() {
    ibv_srq_attr attr{};
    EXPECT_EQ(ops.query_srq(srq, &attr), 0);
    return attr.srq_limit;
  }
  // The types of the events that are there.
  std::vector<int> events() {
    std::vector<int> types;
    for (ibv_async_event event; ops.get_async_event(device.context, &event) == 0;) {
      types.push_back(event.event_type);
      if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) {
        EXPECT_EQ(event.element.srq, srq);
      }
      ops.ack_async_event(&event);
    }
    return types;
  }
};

TEST_P(Conformance, SharedReceivesGoToWhoeverComesFirst) {
  Shared shared(b());
  Endpoint x(a()), y(b(), shared.options()), v(a()), w(b(), shared.options());
  connect(x, y);
  connect(v, w);
  for (std::uint64_t id = 10; id < 14; ++id) ASSERT_EQ(shared.post(id, 1000 * id), 0);
  std::uint64_t due = 10;
  for (int round = 0; round < 2; ++round)
    for (auto [from, to] : {std::pair{&v, &w}, std::pair{&x, &y}}) {
      std::memset(from->at(0), static_cast<int>(due), 100);
      ASSERT_EQ(from->post_send(due, {from->sge(0, 100)}), 0);
      const ibv_wc wc = to->wait();
      EXPECT_WC(wc, due, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.qp_num, to->qp->qp_num);
      EXPECT_EQ(shared.memory[1000 * due + 99], static_cast<char>(due));
      EXPECT_WC(from->wait(), due, IBV_WC_SUCCESS);
      ++due;
    }
}

TEST_P(Conformance, ASharedQueueWithoutReceivesHoldsAllBack) {
  Shared shared(b());
  Endpoint x(a()), y(b(), shared.options()), v(a()), w(b(), shared.options());
  connect(x, y);
  connect(v, w);
  const long before = refusals(y);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  ASSERT_EQ(v.post_send(2, {v.sge(0, 10)}), 0);
  while (refusals(y) < before + 2)
    for (Endpoint* e : {&x, &y, &v, &w}) EXPECT_EQ(e->poll(), 0);
  // One receive is for one of them; whoever was refused again hears of the next.
  for (std::uint64_t id : {5, 6}) {
    ASSERT_EQ(shared.post(id), 0);
    ibv_wc wc{};
    while (y.ops.poll_cq(y.cq, 1, &wc) == 0 && w.ops.poll_cq(w.cq, 1, &wc) == 0) x.ops.progress(0);
    EXPECT_WC(wc, id, IBV_WC_SUCCESS);
  }
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(v.wait(), 2, IBV_WC_SUCCESS);
}

TEST_P(Conformance, TheLimitOfASharedQueueIsToldOnce) {
  Shared shared(b());
  Endpoint x(a()), y(b(), shared.options());
  connect(x, y);
  for (std::uint64_t id = 0; id < 4; ++id) ASSERT_EQ(shared.post(id), 0);
  EXPECT_EQ(shared.set_limit(17), EINVAL);
  ASSERT_EQ(shared.set_limit(3), 0);
  EXPECT_EQ(shared.limit(), 3u);
  for (std::uint64_t id = 0; id < 3; ++id) {
    EXPECT_EQ(shared.events(), std::vector<int>{}) << id;
    ASSERT_EQ(x.post_send(id, {x.sge(0, 10)}), 0);
    EXPECT_WC(y.wait(), id, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), id, IBV_WC_SUCCESS);
    if (id == 0) continue;  // three are left: not fewer than three
    if (id == 1) {
      EXPECT_EQ(shared.events(), std::vector<int>{IBV_EVENT_SRQ_LIMIT_REACHED});
      EXPECT_EQ(shared.limit(), 0u);
    }
  }
  ASSERT_EQ(shared.set_limit(2), 0);  // there is one: told at once
  EXPECT_EQ(shared.events(), std::vector<int>{IBV_EVENT_SRQ_LIMIT_REACHED});
}

TEST_P(Conformance, AnErrorLeavesSharedReceivesToOthers) {
  Shared shared(b());
  Endpoint x(a()), y(b(), shared.options()), v(a()), w(b(), shared.options());
  connect(x, y);
  connect(v, w);
  ASSERT_EQ(shared.post(7), 0);
  ASSERT_EQ(y.to_state(IBV_QPS_ERR), 0);
  EXPECT_EQ(shared.events(), std::vector<int>{IBV_EVENT_QP_LAST_WQE_REACHED});
  EXPECT_EQ(y.poll(), 0);
  ASSERT_EQ(v.post_send(1, {v.sge(0, 10)}), 0);
  EXPECT_WC(w.wait(), 7, IBV_WC_SUCCESS);
  EXPECT_WC(v.wait(), 1, IBV_WC_SUCCESS);
}

// A message that was on its way in has not used its receive up: the next message gets it.
TEST_P(Conformance, TheSharedReceiveOfAMessageThatIsCutIsTheNextOnes) {
  constexpr std::uint32_t kBytes = 32 << 20;  // more than any transport holds
  Shared shared(b(), 16, kBytes);
  Endpoint x(a(), {}, kBytes), y(b(), shared.options()), v(a()), w(b(), shared.options());
  connect(x, y);
  connect(v, w);
  ASSERT_EQ(shared.post(5), 0);
  ASSERT_EQ(v.post_send(1, {v.sge(0, 10)}), 0);  // brings the connection up
  EXPECT_WC(w.wait(), 5, IBV_WC_SUCCESS);
  EXPECT_WC(v.wait(), 1, IBV_WC_SUCCESS);
  x.process.stop_helper();
  if (&x.process != &y.process) y.process.stop_helper();
  std::memset(x.at(0), 'c', kBytes);
  shared.memory[0] = 0;
  ASSERT_EQ(shared.post(6, 0, kBytes), 0);
  ASSERT_EQ(x.post_send(2, {x.sge(0, kBytes)}), 0);
  while (shared.memory[0] == 0) {
    x.ops.progress(0);
    if (shared.memory[0] == 0) y.ops.progress(0);
  }
  ASSERT_EQ(shared.memory[kBytes - 1], 0) << "the message is to be on its way";
  ASSERT_EQ(y.to_state(IBV_QPS_ERR), 0);
  x.process.start_helper();
  if (&x.process != &y.process) y.process.start_helper();
  ASSERT_EQ(v.post_send(3, {v.sge(0, 10)}), 0);
  EXPECT_WC(w.wait(), 6, IBV_WC_SUCCESS);
  EXPECT_WC(v.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_EQ(y.poll(), 0);
  EXPECT_WC(x.wait(), 2, IBV_WC_RETRY_EXC_ERR);
}

TEST_P(Conformance, RulesOfSharedQueues) {
  Shared shared(b(), 2);
  {
    Endpoint y(b(), shared.options());
    EXPECT_EQ(shared.ops.destroy_srq(shared.srq), EBUSY);
    ASSERT_EQ(y.to_init(y.qp), 0);
    EXPECT_EQ(y.post_recv(1, {}), EINVAL);
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(y.ops.query_qp(y.qp, &attr, 0, &init), 0);
    EXPECT_EQ(init.srq, shared.srq);
  }
  EXPECT_EQ(shared.post(1), 0);
  EXPECT_EQ(shared.post(2), 0);
  EXPECT_EQ(shared.post(3), ENOMEM);
  ibv_sge sges[2]{};
  ibv_recv_wr wr{4, nullptr, sges, 2};
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(shared.ops.post_srq_recv(shared.srq, &wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
  ibv_srq_attr larger{4, 1, 0};
  EXPECT_EQ(shared.ops.modify_srq(shared.srq, &larger, IBV_SRQ_MAX_WR), EOPNOTSUPP);
  ibv_srq_init_attr none{};
  EXPECT_EQ(shared.ops.create_srq(shared.pd, &none), nullptr);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
