// Signals that the program did not ask for, over a backend that completes what it is told to.
#include "shadowib/objects/forced_signals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/datapath/tests/forced_signals_fixture.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

TEST_F(ForcedSignals, TheLogKnowsWhatHasRunAndTheProgramHearsOfItsOwnAlone) {
  for (std::uint64_t id : {1, 2, 3, 4}) ASSERT_EQ(send(id, id == 3 ? IBV_SEND_SIGNALED : 0), 0);
  execute(2);
  drain_completions(cq);  // as a checkpoint does
  EXPECT_EQ(executed_frontier(qp), 2u) << "no completion tells of an unsignaled tail";
  EXPECT_EQ(poll(4), Ids{});
  execute(2);
  EXPECT_EQ(poll(4), Ids{3});
  EXPECT_EQ(executed_frontier(qp), 4u);
}

TEST_F(ForcedSignals, AfterARestartToo) {
  context->translate = true;
  qp.turn_sends();
  ibv_wc wc[4] = {};
  for (std::uint64_t id = 1; id <= 12; ++id) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 8, 1};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = id % 4 == 0 ? IBV_SEND_SIGNALED : 0;
    ASSERT_EQ(post_send_turning(&qp.qp.qp_base, &wr, &bad), 0);
    EXPECT_EQ(g_posted.back().flags, static_cast<unsigned>(IBV_SEND_SIGNALED)) << id;
    execute(1);
    if (id % 4 == 2) {
      EXPECT_EQ(poll_cq_turning(&cq.cq, 4, wc), 0);
    }
    if (id % 4 != 0) continue;
    ASSERT_EQ(poll_cq_turning(&cq.cq, 4, wc), 1);
    EXPECT_EQ(wc[0].wr_id, id);
    EXPECT_EQ(wc[0].qp_num, 77u);
  }
  EXPECT_EQ(executed_frontier(qp), 12u);
}

TEST_F(ForcedSignals, APollGoesOnBehindWhatItSwallows) {
  for (std::uint64_t id : {1, 2, 3, 4, 5}) ASSERT_EQ(send(id, id >= 4 ? IBV_SEND_SIGNALED : 0), 0);
  execute(5);
  EXPECT_EQ(poll(1), Ids{4});
  EXPECT_EQ(poll(8), Ids{5});
}

TEST_F(ForcedSignals, APollIsFullWhileAnyOfTheProgramsIsLeft) {
  constexpr unsigned kRequests = 6;
  for (unsigned asked = 0; asked < 1u << kRequests; ++asked)  // a bit for each request that the program has signaled
    for (std::size_t count = 1; count <= 4; ++count) {
      Ids due;
      for (unsigned i = 0; i < kRequests; ++i) {
        const bool signaled = (asked >> i & 1) != 0;
        ASSERT_EQ(send(i + 1, signaled ? IBV_SEND_SIGNALED : 0), 0);
        if (signaled) due.push_back(i + 1);
      }
      execute(kRequests);
      while (!due.empty()) {
        const Ids first(due.begin(), due.begin() + static_cast<std::ptrdiff_t>(std::min(count, due.size())));
        ASSERT_EQ(poll(static_cast<int>(count)), first) << asked << " " << count;
        due.erase(due.begin(), due.begin() + static_cast<std::ptrdiff_t>(first.size()));
      }
      ASSERT_EQ(poll(static_cast<int>(count)), Ids{}) << asked << " " << count;
      ASSERT_TRUE(g_completed.empty()) << asked << " " << count;
      ASSERT_EQ(qp.send.retired(), qp.send.head) << asked << " " << count;
    }
}

TEST_F(ForcedSignals, ThePlaceOfASwallowedOneIsForWhatOthersDrainDuringTheSecondLook) {
  ASSERT_EQ(send(1, IBV_SEND_SIGNALED), 0);
  ASSERT_EQ(send(2, 0), 0);
  execute(2);
  g_after_poll = [this] {  // the first look
    g_after_poll = [this] {
      ASSERT_EQ(send(3, IBV_SEND_SIGNALED), 0);
      execute(1);
      drain_completions(cq);
    };
  };
  EXPECT_EQ(poll(2), (Ids{1, 3}));
  EXPECT_EQ(poll(2), Ids{});
}

TEST_F(ForcedSignals, AnErrorIsToldOfWhateverWasAskedFor) {
  ASSERT_EQ(send(1, 0), 0);
  ASSERT_EQ(send(2, 0), 0);
  execute(1);
  execute(1, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(poll(4), Ids{2});
}

// A resume may post it again (cr/retries.cc), and then it is forced again, or on another backend not.
TEST_F(ForcedSignals, ARequestThatFailedIsInTheLogAsItWasPosted) {
  ASSERT_EQ(send(1, 0), 0);
  EXPECT_TRUE(qp.send.slot(0).forced());
  EXPECT_EQ(g_posted.front().flags, unsigned{IBV_SEND_SIGNALED});
  execute(1, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(poll(4), Ids{1});
  EXPECT_EQ(qp.send.slot(0).wr.send_flags, 0u);
  qp.send.slot(0).pend(SlotHeader::kPlain);
  ASSERT_EQ(repost_sends(qp, 0), 0);
  EXPECT_TRUE(qp.send.slot(0).forced());
  ASSERT_EQ(repost_sends(qp, 0), 0);  // as it is under way
  end_forcing_signals(qp);
  ASSERT_EQ(repost_sends(qp, 0), 0);
  EXPECT_EQ(g_posted.back().flags, 0u) << "this backend knows by itself";
}

TEST_F(ForcedSignals, AQueueOfUnsignaledRequestsNeedsNoPolling) {
  for (std::uint64_t id = 0; id < 10 * kSlots; ++id) {
    ASSERT_EQ(send(id, 0), 0) << id;
    execute(1);
  }
  EXPECT_LE(g_completed.size(), real_cq.cqe) << "more than the completion queue holds";
  EXPECT_EQ(poll(16), Ids{});
}

TEST_F(ForcedSignals, AFullQueueIsFull) {
  for (std::uint64_t id = 0; id < kSlots; ++id) ASSERT_EQ(send(id, 0), 0);
  EXPECT_EQ(send(99, 0), ENOMEM) << "none has run";
  execute(1);
  EXPECT_EQ(send(99, 0), 0);
}

// A poller has the flush of the first request and is held up; another notes those of all others. Used again, the
// first slot would give the poller the wr_id of another request.
TEST_F(ForcedSignals, AFlushedSlotIsKeptUntilItsOwnCompletionWasTaken) {
  for (const bool forced : {true, false}) {
    if (!forced) end_forcing_signals(qp);
    const std::uint64_t first = forced ? 0 : 100;
    for (std::uint64_t i = 0; i < kSlots; ++i) ASSERT_EQ(send(first + i, 0), 0);
    execute(kSlots, IBV_WC_WR_FLUSH_ERR);
    g_after_poll = [&] {
      EXPECT_EQ(poll(16).size(), kSlots - 1);
      EXPECT_EQ(send(99, 0), ENOMEM) << "the first is not known to be done";
    };
    EXPECT_EQ(poll(1), Ids{first});
    EXPECT_EQ(send(99, 0), 0);
    execute(1, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(poll(1), Ids{99});
    ASSERT_EQ(qp.send.head % kSlots, 1u);
    qp.send.clear();
  }
}

TEST_F(ForcedSignals, TheCompletionQueueHoldsThemBesideTheProgramsOwn) {
  EXPECT_TRUE(qp.forces_signals);
  EXPECT_GE(real_cq.cqe, 4 + static_cast<int>(kSlots));
  EXPECT_EQ(cq.cq.cqe, 4);
  end_forcing_signals(qp);
  EXPECT_EQ(cq.reserved, 0u);
}

TEST_F(ForcedSignals, NoRoomNoForce) {
  end_forcing_signals(qp);
  real_cq.cqe = 4;
  g_can_resize = false;
  begin_forcing_signals(qp);
  EXPECT_FALSE(qp.forces_signals);
  ASSERT_EQ(send(1, 0), 0);
  EXPECT_EQ(g_posted.front().flags & IBV_SEND_SIGNALED, 0u);
}

// An event for a completion that the program never sees would wake it for nothing; and the queue stays armed.
TEST_F(ForcedSignals, NoEventForWhatIsSwallowed) {
  req_notify_cq(&cq.cq, 0);
  ASSERT_EQ(send(1, 0), 0);
  execute(1);
  g_events = 1;
  EXPECT_EQ(next_event(channel), nullptr);
  EXPECT_EQ(g_armed, 2) << "the event was the program's only one";
  ASSERT_EQ(send(2, IBV_SEND_SIGNALED), 0);
  execute(1);
  g_events = 1;
  EXPECT_EQ(next_event(channel), &cq);
  EXPECT_EQ(poll(4), Ids{2});
}

// A request that the device does not take changes nothing: what was completed before belongs to the one before.
TEST_F(ForcedSignals, ARefusedRequestTakesNoEventAway) {
  req_notify_cq(&cq.cq, 0);
  ASSERT_EQ(send(1, 0), 0);
  ASSERT_EQ(send(2, IBV_SEND_SIGNALED), 0);
  execute(2);
  EXPECT_EQ(poll(4), Ids{2});
  g_backend.req_notify_cq = [](ibv_cq*, int) { return ENODEV; };
  EXPECT_EQ(req_notify_cq(&cq.cq, 0), ENODEV);
  g_events = 1;
  EXPECT_EQ(next_event(channel), &cq);
}

// The program may poll before it reads the event.
TEST_F(ForcedSignals, TheEventOfWhatWasPolledIsTold) {
  ASSERT_EQ(send(9, 0), 0);  // so that events may be for ours
  execute(1);
  EXPECT_EQ(poll(4), Ids{});
  req_notify_cq(&cq.cq, 0);
  ASSERT_EQ(send(1, IBV_SEND_SIGNALED), 0);
  execute(1);
  g_events = 1;
  EXPECT_EQ(poll(4), Ids{1});
  EXPECT_EQ(next_event(channel), &cq);
}

// The program's request is answered while the queue is armed again for it, so that it is armed once more than the
// program has asked.
class SurplusEvent : public ForcedSignals {
 protected:
  void SetUp() override {
    ForcedSignals::SetUp();
    req_notify_cq(&cq.cq, 0);
    ASSERT_EQ(send(1, 0), 0);
    ASSERT_EQ(send(2, IBV_SEND_SIGNALED), 0);
    execute(1);
    g_events = 1;
    g_before_arming = [this] { execute(1); };
    ASSERT_EQ(next_event(channel), &cq);
    ASSERT_EQ(g_armed, 2);
    ASSERT_EQ(poll(4), Ids{2});
  }
  void complete(std::uint64_t id) {
    ASSERT_EQ(send(id, IBV_SEND_SIGNALED), 0);
    execute(1);
    g_events = 1;
  }
};

TEST_F(SurplusEvent, IsNotTold) {
  complete(3);
  EXPECT_EQ(next_event(channel), nullptr) << "two events for one request";
  EXPECT_EQ(poll(4), Ids{3});
}

TEST_F(SurplusEvent, DoesNotSwallowTheAnswerToTheNextRequest) {
  req_notify_cq(&cq.cq, 0);
  complete(3);
  EXPECT_EQ(next_event(channel), &cq);
  EXPECT_EQ(poll(4), Ids{3});
}

// A thread that only waits and polls, while others ask before they post: it does not ask again after an event that
// came for nothing.
TEST_F(SurplusEvent, IsNotTakenForTheAnswerToTheNextRequest) {
  complete(3);
  req_notify_cq(&cq.cq, 0);
  EXPECT_EQ(poll(4), Ids{3});
  EXPECT_EQ(next_event(channel), nullptr);
  complete(4);
  EXPECT_EQ(next_event(channel), &cq);
  EXPECT_EQ(poll(4), Ids{4});
}

TEST_F(SurplusEvent, OfAnotherQueueStays) {
  ShadowCq other{};
  ibv_cq other_real{};
  other_real.cq_context = &other;
  other.arming.note_armed(false);
  real_channel.context = reinterpret_cast<ibv_context*>(&other_real);
  g_events = 1;
  req_notify_cq(&cq.cq, 0);
  EXPECT_EQ(g_events, 0);
  EXPECT_EQ(next_event(channel), &other);
}

}  // namespace
}  // namespace shadowib
