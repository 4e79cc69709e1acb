// What goes on without the program: the helper works while it computes, and sleeps when nothing is due.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

// A timer that was disarmed left its deadline behind, and the helper never slept again.
TEST_P(Conformance, TheHelperSleepsOnceNothingIsDue) {
  Endpoint x(a()), y(b());
  connect(x, y);
  const long before = refusals(y);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  while (refusals(y) == before) {
    x.ops.progress(0);
    y.ops.progress(0);
  }
  ASSERT_EQ(y.post_recv(5, {y.sge(0, 10)}), 0);  // ends the sender's wait before its time
  EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  // Asleep: hardly a turn in 20 ms. Spinning makes thousands, for good.
  auto asleep = [](Endpoint& side) {
    const long turns = figure(side, "helper_turns");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return figure(side, "helper_turns") - turns < 20;
  };
  for (Endpoint* side : {&x, &y}) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
    bool quiet = false;
    while (!(quiet = asleep(*side)) && std::chrono::steady_clock::now() < end) {
    }
    EXPECT_TRUE(quiet);
  }
}

// The sender's helper alone repeats what a timer or a new connection set going: its program computes.
TEST_P(Conformance, ALateReceiverIsServedWhileTheSenderComputes) {
  QpOptions options;
  options.signal_all = 0;
  Endpoint x(a(), options), y(b(), options);
  connect(x, y);
  for (int round = 0; round < 3000; ++round) {
    int rc;
    while ((rc = x.post_send(1, {x.sge(0, 10)})) == ENOMEM) std::this_thread::yield();  // not all acknowledged yet
    ASSERT_EQ(rc, 0);
    const auto late = std::chrono::steady_clock::now() + std::chrono::microseconds(round * 37 % 211);
    while (std::chrono::steady_clock::now() < late) {
    }
    ASSERT_EQ(y.post_recv(5, {y.sge(0, 10)}), 0);
    const ibv_wc wc = y.wait();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << "round " << round;
  }
}

TEST_P(Conformance, RemoteWritesProgressWhileTheTargetComputes) {
  Endpoint x(a()), y(b());
  connect(x, y);
  for (std::uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(x.post_rdma(i, IBV_WR_RDMA_WRITE, {x.sge(0, 1000)}, y.address(0), y.mr->rkey), 0);
    EXPECT_WC(x.wait(), i, IBV_WC_SUCCESS);
  }
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
