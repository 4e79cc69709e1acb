// The states of a queue pair, and what each refuses.
#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

TEST_P(Conformance, StateMachineAndDestroyRules) {
  Endpoint x(a()), y(b());
  ibv_send_wr* bad_send = nullptr;
  ibv_recv_wr* bad_recv = nullptr;
  ibv_send_wr send{};
  ibv_recv_wr recv{};
  EXPECT_EQ(x.ops.post_recv(x.qp, &recv, &bad_recv), EINVAL);
  EXPECT_EQ(bad_recv, &recv);
  EXPECT_EQ(x.to_state(IBV_QPS_RTS), EINVAL);
  EXPECT_EQ(x.to_state(IBV_QPS_INIT), EINVAL) << "attributes are missing";
  ASSERT_EQ(x.to_init(x.qp), 0);
  EXPECT_EQ(x.ops.post_send(x.qp, &send, &bad_send), EINVAL);
  EXPECT_EQ(bad_send, &send);
  EXPECT_EQ(x.to_rts(x.qp), EINVAL);
  ASSERT_EQ(x.post_recv(4, {x.sge(0, 1)}), 0);
  ASSERT_EQ(x.to_rtr(x.qp, y.device, y.qp->qp_num), 0);
  EXPECT_EQ(x.ops.post_send(x.qp, &send, &bad_send), EINVAL);
  ASSERT_EQ(x.to_rts(x.qp), 0);
  EXPECT_EQ(x.to_state(IBV_QPS_RTR), EINVAL);
  EXPECT_EQ(x.ops.destroy_cq(x.cq), EBUSY);
  EXPECT_EQ(x.ops.dealloc_pd(x.pd), EBUSY);
  EXPECT_EQ(x.ops.destroy_comp_channel(x.channel), EBUSY);
  EXPECT_EQ(x.ops.close_device(x.device.context), EBUSY);
  ASSERT_EQ(x.to_state(IBV_QPS_ERR), 0);
  EXPECT_WC(x.wait(), 4, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(x.post_send(5, {}), 0);
  ASSERT_EQ(x.post_recv(6, {}), 0);
  EXPECT_WC(x.wait(), 5, IBV_WC_WR_FLUSH_ERR);
  EXPECT_WC(x.wait(), 6, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(x.to_state(IBV_QPS_RESET), 0);
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {}), 0);
  ASSERT_EQ(x.post_send(2, {}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
}

// A program that reads its events seldom misses none of them, and finds each once.
TEST_P(Conformance, NoEventHidesAnother) {
  QpOptions small;
  small.send_wr = small.recv_wr = small.sge = 1;
  constexpr int kPairs = 1100;
  Endpoint x(a(), small, 4096, kPairs), y(b(), small, 4096);
  const auto next = [&](ibv_async_event* event) {
    if (y.ops.get_async_event(y.device.context, event) != 0) return false;
    y.ops.ack_async_event(event);
    return true;
  };
  ibv_async_event event{};
  while (next(&event)) continue;  // of cases before
  std::vector<std::pair<ibv_qp*, ibv_qp*>> pairs;
  ibv_qp* const own = x.qp;
  for (std::uint64_t i = 0; i < kPairs; ++i) {
    auto [from, to] = pairs.emplace_back(x.make_qp(), y.make_qp());
    ASSERT_EQ(x.to_init(from), 0);
    ASSERT_EQ(y.to_init(to), 0);
    ASSERT_EQ(y.to_rtr(to, x.device, from->qp_num), 0);
    ASSERT_EQ(x.to_rtr(from, y.device, to->qp_num), 0);
    ASSERT_EQ(x.to_rts(from), 0);
    x.qp = from;
    ASSERT_EQ(x.post_rdma(i, IBV_WR_RDMA_WRITE, {}, 0, 0), 0);
  }
  x.qp = own;
  for (int i = 0; i < kPairs; ++i) ASSERT_EQ(x.wait().status, IBV_WC_SUCCESS);
  ibv_srq_init_attr init{};
  init.attr.max_wr = init.attr.max_sge = 1;
  small.srq = y.ops.create_srq(y.pd, &init);
  ASSERT_NE(small.srq, nullptr);
  {
    Endpoint z(b(), small);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(z.to_init(z.qp), 0);
      ASSERT_EQ(z.to_state(IBV_QPS_ERR), 0);
      ASSERT_EQ(z.to_state(IBV_QPS_RESET), 0);
    }
    for (const auto& [from, to] : pairs) {
      ASSERT_TRUE(next(&event));
      EXPECT_EQ(event.event_type, IBV_EVENT_COMM_EST);
      ASSERT_EQ(event.element.qp, to);
    }
    ASSERT_TRUE(next(&event));
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    EXPECT_EQ(event.element.qp, z.qp);
    EXPECT_FALSE(next(&event)) << "told twice";
    ASSERT_EQ(z.to_init(z.qp), 0);
    ASSERT_EQ(z.to_state(IBV_QPS_ERR), 0);
    EXPECT_TRUE(next(&event)) << "it has been read";
  }
  EXPECT_EQ(y.ops.destroy_srq(small.srq), 0);
  for (const auto& [from, to] : pairs) {
    EXPECT_EQ(x.ops.destroy_qp(from), 0);
    EXPECT_EQ(y.ops.destroy_qp(to), 0);
  }
}

TEST_P(Conformance, DestroyAndResetTakeTheirCompletionsAlong) {
  Endpoint x(a());
  ASSERT_TRUE(x.ops.purges_completions);
  ibv_qp *const kept = x.qp, *const ends = x.make_qp();
  std::uint64_t id = 0;
  auto flush_one = [&](ibv_qp* qp) {
    x.qp = qp;
    if (qp->state == IBV_QPS_RESET) {
      EXPECT_EQ(x.to_init(qp), 0);
      EXPECT_EQ(x.to_state(IBV_QPS_ERR), 0);
    }
    EXPECT_EQ(x.post_recv(++id, {}), 0);
  };
  for (ibv_qp* qp : {ends, kept, ends, kept}) flush_one(qp);
  x.qp = ends;
  ASSERT_EQ(x.to_state(IBV_QPS_RESET), 0);
  EXPECT_WC(x.wait(), 2, IBV_WC_WR_FLUSH_ERR);
  for (ibv_qp* qp : {ends, kept, ends}) flush_one(qp);
  EXPECT_EQ(x.ops.destroy_qp(ends), 0);
  x.qp = kept;
  EXPECT_WC(x.wait(), 4, IBV_WC_WR_FLUSH_ERR);
  EXPECT_WC(x.wait(), 6, IBV_WC_WR_FLUSH_ERR);
  ibv_wc none{};
  EXPECT_EQ(x.ops.poll_cq(x.cq, 1, &none), 0);
}

TEST_P(Conformance, FullQueuesAndBadRequests) {
  QpOptions options;
  options.send_wr = 3;
  options.recv_wr = 2;
  Endpoint x(a(), options), y(b(), options);
  connect(x, y);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(x.post_send(static_cast<std::uint64_t>(i), {x.sge(0, 10)}), 0);
  EXPECT_EQ(x.post_send(3, {x.sge(0, 10)}), ENOMEM);
  ASSERT_EQ(x.post_recv(1, {}), 0);
  ASSERT_EQ(x.post_recv(1, {}), 0);
  EXPECT_EQ(x.post_recv(1, {}), ENOMEM);
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(y.post_recv(i, {y.sge(0, 10)}), 0);
    EXPECT_WC(x.wait(), i, IBV_WC_SUCCESS);
    EXPECT_WC(y.wait(), i, IBV_WC_SUCCESS);
  }
  std::vector<ibv_sge> five(5, x.sge(0, 1));
  EXPECT_EQ(x.post_send(1, five), EINVAL);
  EXPECT_EQ(x.post_send(1, {x.sge(0, 65)}, IBV_SEND_INLINE), EINVAL);
  std::vector<ibv_sge> one{x.sge(0, 1)};
  EXPECT_EQ(x.post(x.send_wr(1, IBV_WR_TSO, one)), EOPNOTSUPP);
  // A list is taken up to the bad one.
  ibv_send_wr good = x.send_wr(7, IBV_WR_SEND, one), wrong = x.send_wr(8, IBV_WR_SEND, five);
  good.next = &wrong;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(x.ops.post_send(x.qp, &good, &bad), EINVAL);
  EXPECT_EQ(bad, &wrong);
  ASSERT_EQ(y.post_recv(9, {y.sge(0, 10)}), 0);
  EXPECT_WC(y.wait(), 9, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 7, IBV_WC_SUCCESS);
  ibv_qp_init_attr init = x.init_attr();
  init.cap.max_inline_data = 1025;
  EXPECT_EQ(x.ops.create_qp(x.pd, &init), nullptr);
  EXPECT_EQ(x.process.last_errno(), EINVAL);
  init = x.init_attr();
  init.qp_type = IBV_QPT_RAW_PACKET;
  EXPECT_EQ(x.ops.create_qp(x.pd, &init), nullptr);
  EXPECT_EQ(x.process.last_errno(), EOPNOTSUPP);
}

TEST_P(Conformance, WhatHasRoomForElementsTakesAsMuchInline) {
  Endpoint x(a());
  ibv_qp_init_attr init = x.init_attr();
  init.cap.max_inline_data = 0;
  init.cap.max_send_sge = 2;
  ibv_qp* qp = x.ops.create_qp(x.pd, &init);
  ASSERT_NE(qp, nullptr);
  EXPECT_GE(init.cap.max_inline_data, 2 * sizeof(ibv_sge));
  EXPECT_EQ(x.ops.destroy_qp(qp), 0);
}

// A job that comes from an adapter with more of it has no other queues here.
TEST_P(Conformance, QueuesAreAsLargeAsAdaptersGrantThem) {
  QpOptions options;
  options.sge = 64;
  options.send_wr = options.recv_wr = 20000;
  Endpoint x(a(), options), y(b(), options);
  ibv_device_attr told{};
  ASSERT_EQ(x.ops.query_device(x.device.context, &told), 0);
  EXPECT_LT(told.max_sge, 64);
  EXPECT_LT(told.max_qp_wr, 20000);
  connect(x, y);
  std::vector<ibv_sge> from, to;
  for (std::uint32_t i = 0; i < 64; ++i) {
    std::memset(x.at(i * 1000), static_cast<int>(i + 1), 100);
    from.push_back(x.sge(i * 1000, 100));
    to.push_back(y.sge(i * 500, 100));
  }
  ASSERT_EQ(y.post_recv(1, to), 0);
  ASSERT_EQ(x.post_send(1, from), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  for (std::uint32_t i = 0; i < 64; ++i) EXPECT_EQ(std::memcmp(y.at(i * 500), x.at(i * 1000), 100), 0) << i;
  for (QpOptions more : {QpOptions{.send_wr = (1 << 21) + 1}, QpOptions{.sge = 65}}) {
    ibv_qp_init_attr init = x.init_attr();
    init.cap = {more.send_wr, more.recv_wr, more.sge, more.sge, more.inline_bytes};
    EXPECT_EQ(x.ops.create_qp(x.pd, &init), nullptr);
    EXPECT_EQ(x.process.last_errno(), EINVAL);
  }
}

TEST_P(Conformance, SendQueueDrains) {
  Endpoint x(a()), y(b());
  connect(x, y);
  ASSERT_EQ(y.post_recv(0, {}), 0);
  ASSERT_EQ(x.post_send(0, {}), 0);  // the connection is up after this
  EXPECT_WC(y.wait(), 0, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 0, IBV_WC_SUCCESS);
  ASSERT_EQ(y.post_recv(1, {}), 0);
  ASSERT_EQ(x.post_send(1, {}), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(x.ops.modify_qp(x.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  ASSERT_EQ(x.post_send(2, {}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  pollfd drained{x.device.context->async_fd, POLLIN, 0};  // the event follows the completion
  ASSERT_EQ(::poll(&drained, 1, 10000), 1);
  ibv_async_event event{};
  ASSERT_EQ(x.ops.get_async_event(x.device.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
  ASSERT_EQ(y.post_recv(2, {}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(y.poll(), 0) << "a drained queue begins nothing";
  ASSERT_EQ(x.to_state(IBV_QPS_RTS), 0);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
