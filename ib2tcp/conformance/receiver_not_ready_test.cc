// A receiver without a receive: what waits for it, what does not, and for how long.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "ib2tcp/conformance/fixture.h"
#include "shadowib/base/lock.h"

namespace shadowib::ib2tcp::testing {
namespace {

TEST_P(Conformance, ReceiverNotReadyHoldsEverythingBack) {
  Endpoint x(a()), y(b());
  connect(x, y);
  std::memset(x.at(0), 'n', 100);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE_WITH_IMM, {x.sge(0, 100)}, y.address(0), y.mr->rkey), 0);
  ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_WRITE, {x.sge(0, 100)}, y.address(200), y.mr->rkey), 0);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(x.poll(), 0);
    EXPECT_EQ(y.poll(), 0);
  }
  EXPECT_EQ(y.at(0)[0], 0) << "a write with immediate must wait for the receive";
  EXPECT_EQ(y.at(200)[0], 0) << "what is behind it must wait too";
  EXPECT_EQ(x.ops.sq_executed(x.qp), 0u);
  ASSERT_EQ(y.post_recv(9, {}), 0);
  EXPECT_WC(y.wait(), 9, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(y.at(0)[99], 'n');
  EXPECT_EQ(y.at(200)[99], 'n');
}

TEST_P(Conformance, OtherQueuePairsGoOnPastOneThatIsNotReady) {
  Endpoint x(a()), y(b()), v(a()), w(b());
  connect(x, y);
  connect(v, w);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100000)}), 0);
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(w.post_recv(i, {w.sge(0, 100)}), 0);
    ASSERT_EQ(v.post_send(i, {v.sge(0, 100)}), 0);
    EXPECT_WC(w.wait(), i, IBV_WC_SUCCESS);
    EXPECT_WC(v.wait(), i, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(y.post_recv(5, {y.sge(0, 100000)}), 0);
  EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
}

TEST_P(Conformance, RnrRetriesRunOut) {
  QpOptions options;
  options.rnr_retry = 2;
  Endpoint x(a(), options), y(b(), options);
  connect(x, y);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_WC(x.wait(), 2, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(x.state(), IBV_QPS_ERR);
  EXPECT_EQ(y.state(), IBV_QPS_RTS);
}

// What cannot be sent at all fails in its turn, and what it stands behind is sent again as often as it takes.
TEST_P(Conformance, ABadRequestBehindOneThatIsNotReadyWaitsForIt) {
  Endpoint x(a()), y(b());
  connect(x, y);
  std::vector<ibv_sge> good{x.sge(0, 10)}, bad{x.sge(0, 10)};
  bad[0].lkey ^= 0x10000;
  ibv_send_wr first = x.send_wr(1, IBV_WR_SEND, good), second = x.send_wr(2, IBV_WR_SEND, bad);
  first.next = &second;  // one call, so that the bad one is looked at before the refusal of the first is there
  const long before = refusals(y);
  ASSERT_EQ(x.post(first), 0);
  while (refusals(y) == before) {
    EXPECT_EQ(x.poll(), 0);
    EXPECT_EQ(y.poll(), 0);
  }
  ASSERT_EQ(y.post_recv(5, {y.sge(0, 10)}), 0);
  EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(x.state(), IBV_QPS_ERR);
}

// What is refused is asked for again and again, maybe by thousands of queue pairs: by its oldest request alone.
TEST_P(Conformance, WhatIsRefusedIsNotSentAgainWhole) {
  constexpr std::uint64_t kRequests = 16;
  constexpr long kRefusals = 12;
  Endpoint x(a()), y(b());
  connect(x, y);
  for (std::uint64_t i = 0; i < kRequests; ++i) ASSERT_EQ(x.post_send(i, {x.sge(0, 100)}), 0);
  const auto await_refusals = [&](long more) {
    for (const long before = refusals(y); refusals(y) < before + more;) {
      EXPECT_EQ(x.poll(), 0);
      EXPECT_EQ(y.poll(), 0);
    }
  };
  await_refusals(2);  // the first is of all of them
  const long sent = figure(x, "frames_sent");
  await_refusals(kRefusals);
  EXPECT_LE(figure(x, "frames_sent") - sent, 4 * kRefusals);  // and a refusal each, if both are one process
  for (std::uint64_t i = 0; i < kRequests; ++i) ASSERT_EQ(y.post_recv(i, {y.sge(0, 100)}), 0);
  for (std::uint64_t i = 0; i < kRequests; ++i) {
    EXPECT_WC(y.wait(), i, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), i, IBV_WC_SUCCESS);
  }
}

// Finite retries must not run out because a checkpoint stopped the receiver (the retries of this test last
// 30 us, the pause is over only after many times that).
TEST_P(Conformance, APausedReceiverUsesUpNoRetries) {
  for (bool sender_paused : {false, true}) {
    QpOptions options;
    options.rnr_retry = 2;
    Endpoint x(a(), options), y(b(), options);
    connect(x, y);
    const BackendOps& stopped = sender_paused ? x.ops : y.ops;
    stopped.set_paused(1);
    const long before = refusals(y);
    ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
    // Twenty refusals are ten times what the request may take.
    while (refusals(y) < before + 20) {
      ASSERT_EQ(x.state(), IBV_QPS_RTS);
      x.ops.progress(0);
      y.ops.progress(0);
    }
    ASSERT_EQ(x.state(), IBV_QPS_RTS);
    ASSERT_EQ(y.post_recv(5, {y.sge(0, 10)}), 0);
    EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
    stopped.set_paused(0);
  }
}

// Each waits for the error of a request that nobody receives.
void await_refusal(Endpoint& x) {
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
}

QpOptions without_retry() {
  QpOptions options;
  options.rnr_retry = 0;
  return options;
}

// A refusal right behind a pause does not count either: the program has had no turn since. Of two queue pairs one's
// sender and the other's receiver were stopped.
TEST_P(Conformance, RefusalsCountOnlyAWhileAfterAPause) {
  constexpr std::int64_t kLongestTimerNs = 655'360'000;
  const QpOptions options = without_retry();
  Endpoint x(a(), options), y(b(), options), v(a(), options), w(b(), options), before(a(), options),
      beside(b(), options);
  connect(x, y);
  connect(w, v);
  connect(before, beside);
  await_refusal(before);  // no turn is under way
  y.ops.set_paused(1);
  const std::int64_t resumed = monotonic_ns();
  y.ops.set_paused(0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  ASSERT_EQ(w.post_send(1, {w.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_GT(monotonic_ns() - resumed, kLongestTimerNs);
  EXPECT_WC(w.wait(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
}

// A request that nobody receives, of two sides that are stopped often. The turn of one may begin a pause later.
void await_refusal_between_pauses(Endpoint& x, Endpoint& y, std::int64_t apart_ns, int most_pauses, bool later) {
  y.ops.set_paused(1);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  int pauses = 0;
  for (; x.state() == IBV_QPS_RTS && pauses < most_pauses; ++pauses) {
    for (const BackendOps* ops : {&x.ops, &y.ops})
      if (ops == &y.ops || !later || pauses > 0) ops->set_paused(1);
    for (const BackendOps* ops : {&x.ops, &y.ops}) ops->set_paused(0);
    for (const std::int64_t end = monotonic_ns() + apart_ns; monotonic_ns() < end;) {
      x.ops.progress(0);
      y.ops.progress(0);
    }
  }
  ASSERT_LT(pauses, most_pauses);
  EXPECT_WC(x.wait(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
}

// However often they are stopped: a turn is a time in which a program runs.
TEST_P(Conformance, RefusalsCountThoughPausesComeOften) {
  Endpoint x(a(), without_retry()), y(b(), without_retry());
  connect(x, y);
  await_refusal_between_pauses(x, y, 70'000'000, 100, false);
}

// Turns of more than half of the time between pauses, by turns: no two would ever be over at once.
TEST_P(Conformance, RefusalsCountThoughTurnsDoNotMeet) {
  Endpoint x(a(), without_retry()), y(b(), without_retry()), before(a(), without_retry()),
      beside(b(), without_retry());
  connect(x, y);
  connect(before, beside);
  await_refusal(before);  // no turn is under way
  await_refusal_between_pauses(x, y, 600'000'000, 10, true);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
