// Peers that are not there, not yet there or about to go, and what queue pairs share.
#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

TEST_P(Conformance, NoSuchPeer) {
  Endpoint x(a()), y(b());
  // A queue pair that does not exist, a LID nobody has, a sequence that does not fit.
  ASSERT_EQ(x.to_init(x.qp), 0);
  ASSERT_EQ(x.to_rtr(x.qp, y.device, 0xabcdef), 0);
  ASSERT_EQ(x.to_rts(x.qp), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_RETRY_EXC_ERR);

  Endpoint v(a());
  Device nowhere = v.device;
  nowhere.port.lid = static_cast<std::uint16_t>(v.device.port.lid % 1000 + 3);
  ASSERT_EQ(v.to_init(v.qp), 0);
  ASSERT_EQ(v.to_rtr(v.qp, nowhere, 5), 0);
  ASSERT_EQ(v.to_rts(v.qp), 0);
  ASSERT_EQ(v.post_send(2, {v.sge(0, 10)}), 0);
  EXPECT_WC(v.wait(), 2, IBV_WC_RETRY_EXC_ERR);

  QpOptions other;
  other.psn = 99;
  Endpoint s(a()), t(b(), other);
  connect(s, t);
  ASSERT_EQ(t.post_recv(1, {t.sge(0, 10)}), 0);
  ASSERT_EQ(s.post_send(3, {s.sge(0, 10)}), 0);
  EXPECT_WC(s.wait(), 3, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(t.poll(), 0);
}

TEST_P(Conformance, PeerThatComesLaterIsWaitedFor) {
  QpOptions options;
  options.timeout = 14;
  options.retry_cnt = 7;
  Endpoint x(a(), options), y(b(), options);
  ASSERT_EQ(x.to_init(x.qp), 0);
  ASSERT_EQ(x.to_rtr(x.qp, y.device, y.qp->qp_num), 0);
  ASSERT_EQ(x.to_rts(x.qp), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 10)}), 0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(x.poll(), 0);
  ASSERT_EQ(y.to_init(y.qp), 0);
  ASSERT_EQ(y.post_recv(7, {y.sge(0, 10)}), 0);
  ASSERT_EQ(y.post_recv(8, {y.sge(0, 10)}), 0);
  ASSERT_EQ(y.to_rtr(y.qp, x.device, x.qp->qp_num), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 7, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 8, IBV_WC_SUCCESS);
  ibv_async_event event{};
  ASSERT_EQ(y.ops.get_async_event(y.device.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_COMM_EST);
}

TEST_P(Conformance, DestroyingAnswersThePeerFirst) {
  Endpoint x(a());
  {
    Endpoint y(b());
    connect(x, y);
    ASSERT_EQ(y.post_recv(1, {}), 0);
    ASSERT_EQ(x.post_send(1, {}), 0);
    EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  }
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
}

TEST_P(Conformance, TwoThousandQueuePairsShareOneConnection) {
  Endpoint x(a(), {}, 1 << 16, 1 << 14), y(b(), {}, 1 << 16, 1 << 14);
  QpOptions small;
  small.send_wr = small.recv_wr = 2;
  small.sge = 1;
  small.inline_bytes = 0;
  x.options = y.options = small;
  std::size_t before;
  {
    std::lock_guard<std::mutex> guard(x.process.mutex_);
    before = x.process.descriptors_.size();
  }
  std::vector<ibv_qp*> left, right;
  ibv_qp *const own_x = x.qp, *const own_y = y.qp;
  for (int i = 0; i < 2000; ++i) {
    left.push_back(x.make_qp());
    right.push_back(y.make_qp());
    ASSERT_EQ(x.to_init(left[i]), 0);
    ASSERT_EQ(y.to_init(right[i]), 0);
    ASSERT_EQ(x.to_rtr(left[i], y.device, right[i]->qp_num), 0);
    ASSERT_EQ(y.to_rtr(right[i], x.device, left[i]->qp_num), 0);
    ASSERT_EQ(x.to_rts(left[i]), 0);
    ASSERT_EQ(y.to_rts(right[i]), 0);
    y.qp = right[i];
    ASSERT_EQ(y.post_recv(static_cast<std::uint64_t>(i), {y.sge(0, 16)}), 0);
  }
  for (int i = 0; i < 2000; ++i) {
    x.qp = left[i];
    ASSERT_EQ(x.post_send(static_cast<std::uint64_t>(i), {x.sge(0, 16)}), 0);
  }
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(x.wait().status, IBV_WC_SUCCESS);
    ASSERT_EQ(y.wait().status, IBV_WC_SUCCESS);
  }
  {
    std::lock_guard<std::mutex> guard(x.process.mutex_);
    EXPECT_LE(x.process.descriptors_.size(), before + 4);
  }
  for (int i = 0; i < 2000; ++i) {
    EXPECT_EQ(x.ops.destroy_qp(left[i]), 0);
    EXPECT_EQ(y.ops.destroy_qp(right[i]), 0);
  }
  x.qp = own_x;
  y.qp = own_y;
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
