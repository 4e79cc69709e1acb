// Unreliable connections (UC): as reliable ones while all goes well, and nobody is told when it does not.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

QpOptions unreliable() {
  QpOptions o;
  o.type = IBV_QPT_UC;
  return o;
}

TEST_P(Conformance, UnreliableSendsAndWrites) {
  Endpoint x(a(), unreliable()), y(b(), unreliable());
  connect(x, y);
  std::memcpy(x.at(0), "unreliable", 10);
  ASSERT_EQ(y.post_recv(10, {y.sge(0, 100)}), 0);
  ASSERT_EQ(y.post_recv(11, {}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_WRITE, {x.sge(0, 10)}, y.address(500), y.mr->rkey), 0);
  ASSERT_EQ(x.post_rdma(3, IBV_WR_RDMA_WRITE_WITH_IMM, {x.sge(0, 1 << 20)}, y.address(1 << 20), y.mr->rkey), 0);
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_WC(x.wait(), id, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 10, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 11, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(y.at(0), "unreliable", 10), 0);
  EXPECT_EQ(std::memcmp(y.at(500), "unreliable", 10), 0);
  EXPECT_EQ(std::memcmp(y.at(1 << 20), "unreliable", 10), 0);
}

TEST_P(Conformance, WhatAnUnreliableReceiverCannotTakeIsLost) {
  Endpoint x(a(), unreliable()), y(b(), unreliable());
  connect(x, y);
  std::memset(y.at(0), 'z', 10000);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);  // no receive
  ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_WRITE, {x.sge(0, 4000)}, y.address(0), y.mr->rkey ^ 0x5555), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(*y.at(0), 'z');
  ASSERT_EQ(y.post_recv(10, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(3, {x.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 10, IBV_WC_SUCCESS);
  EXPECT_EQ(y.state(), IBV_QPS_RTS);
  EXPECT_EQ(x.state(), IBV_QPS_RTS);
  // A message longer than its receive is the receiver's mistake, and its end; senders do not hear of it.
  ASSERT_EQ(y.post_recv(11, {y.sge(0, 5)}), 0);
  ASSERT_EQ(x.post_send(4, {x.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 4, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 11, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(y.state(), IBV_QPS_ERR);
  ASSERT_EQ(x.post_send(5, {x.sge(0, 10)}), 0);
  ASSERT_EQ(x.post_send(6, {x.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 5, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 6, IBV_WC_SUCCESS);
  ibv_async_event event;
  while (y.ops.get_async_event(y.device.context, &event) == 0) y.ops.ack_async_event(&event);
}

TEST_P(Conformance, AnUnreliableSenderNeedsNobody) {
  Endpoint x(a(), unreliable());
  Device nobody = b();
  nobody.port.lid = static_cast<std::uint16_t>(nobody.port.lid % 0xbffe + 1);
  ASSERT_EQ(x.to_init(x.qp), 0);
  ASSERT_EQ(x.to_rtr(x.qp, nobody, 0x1234), 0);
  ASSERT_EQ(x.to_rts(x.qp), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  // What is held is not lost meanwhile, and what cannot be sent is an error all the same.
  ASSERT_EQ(x.to_state(IBV_QPS_SQD), 0);
  ASSERT_EQ(x.post_send(3, {x.sge(0, 10)}), 0);
  EXPECT_EQ(x.wait(800).wr_id, ~0ull);
  ASSERT_EQ(x.to_state(IBV_QPS_RTS), 0);
  EXPECT_WC(x.wait(), 3, IBV_WC_SUCCESS);
  std::vector<ibv_sge> huge(4, x.sge(0, 1u << 30));
  ASSERT_EQ(x.post_send(4, {x.sge(0, 10)}), 0);
  ASSERT_EQ(x.post_send(5, huge), 0);
  EXPECT_WC(x.wait(), 4, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 5, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(x.state(), IBV_QPS_ERR);
}

TEST_P(Conformance, UnreliableQueuePairsKeepTheirRules) {
  Endpoint x(a(), unreliable()), y(b(), unreliable());
  connect(x, y);
  EXPECT_EQ(x.post_rdma(1, IBV_WR_RDMA_READ, {x.sge(0, 8)}, y.address(0), y.mr->rkey), EINVAL);
  EXPECT_EQ(x.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(0, 8)}, y.address(0), y.mr->rkey, 1, 0), EINVAL);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.min_rnr_timer = 3;
  EXPECT_EQ(x.ops.modify_qp(x.qp, &attr, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER), EINVAL);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
