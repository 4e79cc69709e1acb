// Requests without a signal of their own: one in some is forced, and fences tell of the others.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>

#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/tests/forced_signals_fixture.h"
#include "shadowib/objects/forced_signals.h"

namespace shadowib {
namespace {

TEST_F(Spared, OfMessagesEveryFourthIsForced) {
  post(8, IBV_WR_SEND);
  EXPECT_EQ(posted(), "s---s---");
  execute(8);
  EXPECT_EQ(g_completed.size(), 2u);
  EXPECT_EQ(poll(8), Ids{});
  EXPECT_EQ(frontier(), 5u) << "the last three may have run";
  EXPECT_TRUE(is_spared(qp, 5));
}

TEST_F(Spared, OfOneSidedRequestsToo) {
  post(8, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(posted(), "s---s---");
}

TEST_F(Spared, WhatTheProgramSignalsIsSignaled) {
  for (std::uint64_t id = 1; id <= 6; ++id) ASSERT_EQ(send(id, id % 2 == 0 ? IBV_SEND_SIGNALED : 0, IBV_WR_SEND), 0);
  EXPECT_EQ(posted(), "ss-sss");
  execute(6);
  EXPECT_EQ(poll(8), (Ids{2, 4, 6}));
  EXPECT_EQ(frontier(), 6u);
}

TEST_F(Spared, AFenceTellsOfATail) {
  post(3, IBV_WR_SEND);
  ASSERT_EQ(post_fence(qp, qp.sparing.of_checkpoint), 0);
  EXPECT_EQ(posted(), "s--F");
  EXPECT_EQ(post_fence(qp, qp.sparing.of_checkpoint), EBUSY);
  execute(3);
  EXPECT_EQ(frontier(), 1u) << "it is under way";
  execute(1);
  EXPECT_EQ(frontier(), 3u);
  EXPECT_EQ(poll(8), Ids{});
  EXPECT_FALSE(is_spared(qp, 2));
}

// In a queue pair in error what has not run is flushed, and the fence behind it: what has no completion has run.
TEST_F(Spared, AFenceThatIsFlushedTellsOfATail) {
  post(4, IBV_WR_SEND);
  execute(3);
  ASSERT_EQ(post_fence(qp, qp.sparing.of_checkpoint), 0);
  execute(1, IBV_WC_WR_FLUSH_ERR);
  execute(1, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(frontier(), 4u);
  EXPECT_EQ(poll(8), Ids{4}) << "not the fence";
}

TEST_F(Spared, TheProgramSeesNoFenceAmongItsOwn) {
  ASSERT_EQ(send(1, IBV_SEND_SIGNALED, IBV_WR_SEND), 0);
  post(2, IBV_WR_SEND);
  ASSERT_EQ(post_fence(qp, qp.sparing.of_checkpoint), 0);
  ASSERT_EQ(send(9, IBV_SEND_SIGNALED, IBV_WR_SEND), 0);
  execute(5);
  EXPECT_EQ(poll(2), (Ids{1, 9}));
  EXPECT_EQ(frontier(), 4u);
}

TEST_F(Spared, OneThatTheDeviceRefusesIsNotPosted) {
  post(2, IBV_WR_SEND);
  g_takes = 0;
  EXPECT_EQ(post_fence(qp, qp.sparing.of_checkpoint), ENOMEM);
  EXPECT_EQ(frontier(), 0u);
  g_takes = -1;
  EXPECT_EQ(post_fence(qp, qp.sparing.of_checkpoint), 0);
  execute(3);
  EXPECT_EQ(frontier(), 2u);
}

// A message may wait for a receive, and what is one-sided before it would not be known of.
TEST_F(Spared, AFenceStandsBetweenOneSidedRequestsAndAMessage) {
  post(3, IBV_WR_RDMA_READ);
  post(2, IBV_WR_SEND);
  EXPECT_EQ(posted(), "s--Fs-");
  post(2, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(posted(), "s--Fs-ss") << "from then on they are forced";
  execute(4);
  EXPECT_EQ(frontier(), 3u);
}

TEST_F(Spared, AFenceBeforeAMessageThatIsSignaled) {
  post(2, IBV_WR_RDMA_WRITE);
  ASSERT_EQ(send(9, IBV_SEND_SIGNALED, IBV_WR_SEND), 0);
  EXPECT_EQ(posted(), "s-Fs");
}

TEST_F(Spared, NoFenceBehindOneThatIsForced) {
  post(1, IBV_WR_RDMA_WRITE);
  post(2, IBV_WR_SEND);
  EXPECT_EQ(posted(), "ss-");
}

TEST_F(Spared, NoFenceWithinAList) {
  ASSERT_EQ(post_list({IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_SEND}), 0);
  EXPECT_EQ(posted(), "ss--");
}

TEST_F(Spared, AFenceBeforeAList) {
  post(2, IBV_WR_RDMA_WRITE);
  ASSERT_EQ(post_list({IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE, IBV_WR_SEND}), 0);
  EXPECT_EQ(posted(), "s-Fss-");
}

TEST_F(Spared, AQueueOfThemNeedsNoPolling) {
  for (std::uint64_t id = 0; id < 10 * kSlots; ++id) {
    ASSERT_EQ(send(id, 0, IBV_WR_SEND), 0) << id;
    execute(1);
  }
  EXPECT_EQ(poll(16), Ids{});
}

TEST_F(Spared, OneThatIsForcedAndRefusedIsForcedAgain) {
  g_takes = 0;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(send(1, 0, IBV_WR_SEND), ENOMEM);
  g_takes = -1;
  post(5, IBV_WR_SEND);
  EXPECT_EQ(posted(), "s---s");
}

TEST_F(Spared, OneThatIsForcedAndTooLongIsForcedAgain) {
  for (int i = 0; i < 12; ++i) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 17, 1};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_INLINE;
    ASSERT_EQ(post_send(&qp.qp.qp_base, &wr, &bad), EINVAL);
    if (i % 2 == 1) post(1, IBV_WR_SEND);
  }
  EXPECT_EQ(posted(), "s---s-");
}

TEST_F(Spared, NoneOnceRequestsAreTurned) {
  post(2, IBV_WR_SEND);
  qp.turn_sends();
  post(2, IBV_WR_SEND);
  EXPECT_EQ(posted(), "s-ss");
}

TEST_F(Spared, AnErrorIsToldOfWhateverWasAskedFor) {
  post(2, IBV_WR_SEND);
  execute(1);
  execute(1, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(poll(4), Ids{2});
  EXPECT_EQ(frontier(), 2u);
}

TEST_F(Spared, ThoseThatArePostedAgainAreForced) {
  post(3, IBV_WR_SEND);
  g_posted.clear();
  ASSERT_EQ(repost_sends(qp, 0), 0);
  EXPECT_EQ(posted(), "sss");
}

}  // namespace
}  // namespace shadowib
