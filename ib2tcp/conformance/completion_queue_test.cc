// Completion queues: their channels wake sleepers, and they can overrun.
#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

bool readable(int fd, int timeout_ms) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, timeout_ms) == 1;
}

TEST_P(Conformance, NotificationWakesASleeper) {
  Endpoint x(a()), y(b());
  connect(x, y);
  ibv_cq* cq = nullptr;
  EXPECT_EQ(y.ops.get_cq_event(y.channel, &cq), -1);
  EXPECT_EQ(y.process.last_errno(), EAGAIN);
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(y.post_recv(i, {y.sge(0, 100)}), 0);
    ASSERT_EQ(y.ops.req_notify_cq(y.cq, 0), 0);
    EXPECT_EQ(y.poll(), 0);
    ASSERT_EQ(x.post_send(i, {x.sge(0, 100)}), 0);
    ASSERT_TRUE(readable(y.channel->fd, 5000)) << i;
    ASSERT_EQ(y.ops.get_cq_event(y.channel, &cq), 0);
    EXPECT_EQ(cq, y.cq);
    y.ops.ack_cq_events(cq, 1);
    EXPECT_FALSE(readable(y.channel->fd, 0));
    EXPECT_WC(y.wait(), i, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), i, IBV_WC_SUCCESS);
  }
  // Only for solicited ones, then.
  ASSERT_EQ(y.ops.req_notify_cq(y.cq, 1), 0);
  ASSERT_EQ(y.post_recv(1, {}), 0);
  ASSERT_EQ(y.post_recv(2, {}), 0);
  ASSERT_EQ(x.post_send(1, {}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_FALSE(readable(y.channel->fd, 0));
  ASSERT_EQ(x.post_send(2, {}, IBV_SEND_SOLICITED), 0);
  EXPECT_TRUE(readable(y.channel->fd, 5000));
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
}

// Open MPI's udcm polls, asks, and sleeps: what came between the two was never told, and two ranks waited for each
// other for good.
TEST_P(Conformance, ARequestTellsOfWhatNobodyHasPolled) {
  Endpoint x(a()), y(b());
  connect(x, y);
  ibv_cq* cq = nullptr;
  const auto send = [&](std::uint64_t id, unsigned flags = 0) {
    ASSERT_EQ(y.post_recv(id, {}), 0);
    ASSERT_EQ(x.post_send(id, {}, flags), 0);
    EXPECT_WC(x.wait(), id, IBV_WC_SUCCESS);
  };
  const auto is_told_once = [&] {
    if (y.ops.get_cq_event(y.channel, &cq) != 0) return false;
    y.ops.ack_cq_events(cq, 1);
    return y.ops.get_cq_event(y.channel, &cq) != 0;
  };
  send(1);
  send(2);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_FALSE(is_told_once()) << "nobody has asked";
  ASSERT_EQ(y.ops.req_notify_cq(y.cq, 1), 0);
  EXPECT_FALSE(is_told_once()) << "it was not solicited";
  ASSERT_EQ(y.ops.req_notify_cq(y.cq, 0), 0);
  EXPECT_TRUE(is_told_once());
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
  send(3, IBV_SEND_SOLICITED);
  send(4);
  ASSERT_EQ(y.ops.req_notify_cq(y.cq, 1), 0);
  EXPECT_TRUE(is_told_once()) << "one was solicited";
  ASSERT_EQ(y.ops.req_notify_cq(y.cq, 0), 0);
  EXPECT_FALSE(is_told_once()) << "nobody has polled since, and nothing has come";
  EXPECT_WC(y.wait(), 3, IBV_WC_SUCCESS);
  ASSERT_EQ(y.ops.req_notify_cq(y.cq, 0), 0);
  EXPECT_TRUE(is_told_once()) << "one of two was polled";
  EXPECT_WC(y.wait(), 4, IBV_WC_SUCCESS);
  ASSERT_EQ(y.ops.req_notify_cq(y.cq, 0), 0);
  EXPECT_FALSE(is_told_once()) << "all are polled";
}

TEST_P(Conformance, ARequestTellsOfWhatTookThePlaceOfTheDestroyed) {
  Endpoint x(a());
  ibv_qp *const kept = x.qp, *const ends = x.make_qp();
  for (ibv_qp* qp : {kept, ends}) {
    x.qp = qp;
    ASSERT_EQ(x.to_init(qp), 0);
    ASSERT_EQ(x.to_state(IBV_QPS_ERR), 0);
  }
  ASSERT_EQ(x.ops.req_notify_cq(x.cq, 0), 0);
  ASSERT_EQ(x.post_recv(1, {}), 0);  // is flushed
  ASSERT_EQ(x.ops.destroy_qp(ends), 0);
  x.qp = kept;
  ibv_cq* cq = nullptr;
  ASSERT_EQ(x.ops.get_cq_event(x.channel, &cq), 0);
  EXPECT_EQ(x.poll(), 0);
  ASSERT_EQ(x.post_recv(2, {}), 0);
  EXPECT_EQ(x.ops.get_cq_event(x.channel, &cq), -1);
  ASSERT_EQ(x.ops.req_notify_cq(x.cq, 0), 0);
  EXPECT_EQ(x.ops.get_cq_event(x.channel, &cq), 0);
  EXPECT_WC(x.wait(), 2, IBV_WC_WR_FLUSH_ERR);
}

TEST_P(Conformance, OverrunIsAnErrorOfTheQueue) {
  Endpoint x(a()), y(b(), {}, 1 << 16, 4);
  connect(x, y);
  for (std::uint64_t i = 0; i < 6; ++i) ASSERT_EQ(y.post_recv(i, {}), 0);
  for (std::uint64_t i = 0; i < 6; ++i) ASSERT_EQ(x.post_send(i, {}), 0);
  ibv_async_event event{};
  bool cq_error = false, qp_fatal = false;
  for (int i = 0; i < 2000 && !(cq_error && qp_fatal); ++i) {
    y.ops.progress(0);
    x.ops.progress(0);
    while (y.ops.get_async_event(y.device.context, &event) == 0) {
      cq_error |= event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == y.cq;
      qp_fatal |= event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == y.qp;
    }
  }
  EXPECT_TRUE(cq_error);
  EXPECT_TRUE(qp_fatal);
  EXPECT_EQ(y.state(), IBV_QPS_ERR);
  // The last one comes after the error, perhaps before five are acknowledged.
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_WC(x.wait(), i, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 5, IBV_WC_RETRY_EXC_ERR);
}

TEST_P(Conformance, AResizedQueueKeepsWhatIsInIt) {
  Endpoint x(a()), y(b(), {}, 1 << 20, 4);
  connect(x, y);
  std::uint64_t sent = 0, received = 0;
  auto exchange = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(y.post_recv(sent, {y.sge(0, 100)}), 0);
      ASSERT_EQ(x.post_send(sent++, {x.sge(0, 10)}), 0);
      EXPECT_WC(x.wait(), sent - 1, IBV_WC_SUCCESS);
    }
  };
  exchange(3);
  EXPECT_WC(y.wait(), received++, IBV_WC_SUCCESS);
  exchange(2);
  ASSERT_EQ(y.ops.resize_cq(y.cq, 30), 0);
  EXPECT_GE(y.cq->cqe, 30);
  exchange(26);
  EXPECT_EQ(y.ops.resize_cq(y.cq, 16), EINVAL) << "it holds 30";
  while (received < sent) EXPECT_WC(y.wait(), received++, IBV_WC_SUCCESS);
  ASSERT_EQ(y.ops.resize_cq(y.cq, 2), 0);
  exchange(2);
  while (received < sent) EXPECT_WC(y.wait(), received++, IBV_WC_SUCCESS);
  EXPECT_EQ(y.ops.resize_cq(y.cq, 0), EINVAL);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
