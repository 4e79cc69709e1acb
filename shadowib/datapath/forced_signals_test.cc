// Signals that the program did not ask for, over a backend that completes what it is told to.
#include "shadowib/objects/forced_signals.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

struct Posted {
  std::uint64_t wr_id;
  unsigned flags;
  ibv_wr_opcode opcode;
};
std::deque<Posted> g_posted;
int g_takes = -1;  // requests of a call; all, if negative
std::deque<ibv_wc> g_completed;
std::vector<std::uint64_t> g_in_hand;  // of a poller that is held up
int g_events = 0;                      // that lie in the channel
int g_armed = 0;                       // requests for one
std::function<void()> g_before_arming;
std::function<void()> g_after_poll;  // what others do while a poller is held up behind the backend's answer; once
bool g_can_resize = true;

constexpr std::uint32_t kSlots = 8;

class ForcedSignals : public testing::Test {
 protected:
  void SetUp() override {
    g_posted.clear();
    g_completed.clear();
    g_events = g_armed = 0;
    g_takes = -1;
    g_can_resize = true;
    g_before_arming = g_after_poll = nullptr;
    g_backend = {};
    g_backend.needs_signals = true;
    g_backend.poll_cq = [](ibv_cq*, int count, ibv_wc* wc) {
      int n = 0;
      for (; n < count && !g_completed.empty(); g_completed.pop_front()) wc[n++] = g_completed.front();
      if (auto others = std::exchange(g_after_poll, nullptr)) {
        for (int i = 0; i < n; ++i) g_in_hand.push_back(wc[i].wr_id);
        std::thread(others).join();
        g_in_hand.clear();
      }
      return n;
    };
    g_backend.resize_cq = [](ibv_cq* real, int entries) {
      if (!g_can_resize) return EOPNOTSUPP;
      real->cqe = entries;
      return 0;
    };
    g_backend.req_notify_cq = [](ibv_cq*, int) {
      if (g_before_arming) std::exchange(g_before_arming, nullptr)();
      ++g_armed;
      return 0;
    };
    g_backend.get_cq_event = [](ibv_comp_channel* channel, ibv_cq** real) {
      if (g_events == 0) return -1;
      --g_events;
      *real = reinterpret_cast<ibv_cq*>(channel->context);  // the only one
      return 0;
    };
    g_backend.ack_cq_events = [](ibv_cq*, unsigned) {};
    real_cq.cqe = cq.cq.cqe = 4;
    real_cq.cq_context = &cq;
    cq.real = &real_cq;
    cq.cq.channel = &channel.channel;
    cq.cq.context = &context->program();
    real_channel.context = reinterpret_cast<ibv_context*>(&real_cq);
    channel.real = &real_channel;
    qp.context = context.get();
    qp.qp_num = {77};
    qp.init.send_cq = &cq.cq;
    qp.real_cap.max_send_wr = kSlots;
    qp.real_post_send = [](ibv_qp*, ibv_send_wr* wr, ibv_send_wr** bad) {
      for (int taken = 0; wr != nullptr && taken != g_takes; wr = wr->next, ++taken)
        g_posted.push_back({wr->wr_id, wr->send_flags, wr->opcode});
      *bad = wr;
      return wr != nullptr ? ENOMEM : 0;
    };
    ASSERT_TRUE(qp.send.create(kSlots, 1, 16, false));
    qp.send.belongs_to(qp.qp_num);
    begin_forcing_signals(qp);
  }
  int send(std::uint64_t wr_id, unsigned flags, ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE) {
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 8, 1};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    return post_send(&qp.qp.qp_base, &wr, &bad);
  }
  // The backend has executed the oldest; it completes those that are signaled.
  void execute(int count, ibv_wc_status status = IBV_WC_SUCCESS) {
    for (; count > 0; --count) {
      ASSERT_FALSE(g_posted.empty());
      if ((g_posted.front().flags & IBV_SEND_SIGNALED) != 0 || status != IBV_WC_SUCCESS) {
        ibv_wc wc{};
        wc.wr_id = g_posted.front().wr_id;
        wc.status = status;
        g_completed.push_back(wc);
      }
      g_posted.pop_front();
    }
  }
  std::vector<std::uint64_t> poll(int count) {
    ibv_wc wc[16] = {};
    const int n = poll_cq(&cq.cq, count, wc);
    std::vector<std::uint64_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(wc[i].wr_id);
    return ids;
  }
  using Ids = std::vector<std::uint64_t>;

  std::unique_ptr<ShadowContext> context = std::make_unique<ShadowContext>();
  ibv_cq real_cq{};
  ibv_comp_channel real_channel{};
  ShadowChannel channel;
  ShadowCq cq{};
  ShadowQp qp;
  char memory[64] = {};
};

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

// Of the unsignaled requests of a reliable connection only every fourth is forced.
class Spared : public ForcedSignals {
 protected:
  static constexpr std::uint32_t kEvery = 4;
  void SetUp() override {
    ForcedSignals::SetUp();
    window.rkey = 0x1200;
    pd.fence = &window;
    qp.qp.qp_base.pd = &pd.pd;
    qp.sparing.room = Sparing::kRoom;
    qp.sparing.every = kEvery;
  }
  // Which of those that were posted are signaled ('s'), not ('-'), or fences ('F').
  static std::string posted() {
    std::string text;
    for (const Posted& p : g_posted)
      text += p.opcode == IBV_WR_BIND_MW ? 'F' : (p.flags & IBV_SEND_SIGNALED) != 0 ? 's' : '-';
    return text;
  }
  void post(int count, ibv_wr_opcode opcode) {
    for (; count > 0; --count) ASSERT_EQ(send(++last, 0, opcode), 0);
  }
  int post_list(std::initializer_list<ibv_wr_opcode> opcodes) {
    std::vector<ibv_send_wr> list(opcodes.size());
    std::size_t n = 0;
    for (const ibv_wr_opcode opcode : opcodes) {
      list[n].opcode = opcode;
      if (++n < list.size()) list[n - 1].next = &list[n];
    }
    ibv_send_wr* bad = nullptr;
    return post_send(&qp.qp.qp_base, list.data(), &bad);
  }
  // As a checkpoint does.
  std::uint64_t frontier() {
    drain_completions(cq);
    note_fences(qp);
    retire_executed(qp);
    return executed_frontier(qp);
  }
  ibv_mw window{};
  ShadowPd pd{};
  std::uint64_t last = 0;
};

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

// A program posts and polls, a device executes, and checkpoints look, all at random. Beside it stands what a log must
// know: no place is used again before its request has run and its completion was taken, the program is told once of
// what it asked for or what failed, and a fence tells of all before it.
class SparedAtRandom : public Spared {
 protected:
  struct Request {
    unsigned flags;
    bool has_run, failed, told;
    bool is_due() const { return failed || (flags & IBV_SEND_SIGNALED) != 0; }
  };
  std::uint64_t up_to(std::uint64_t most) { return 1 + random() % most; }
  Request& at(std::uint64_t sequence) { return requests[log[sequence]]; }

  bool is_taken(const SendSlot& slot) {
    const auto id = reinterpret_cast<std::uint64_t>(static_cast<const SlotHeader*>(&slot));
    return std::find(g_in_hand.begin(), g_in_hand.end(), id) == g_in_hand.end() &&
           std::none_of(g_completed.begin(), g_completed.end(), [id](const ibv_wc& wc) { return wc.wr_id == id; });
  }
  // There is one thread.
  bool is_drained(std::uint64_t id) SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    return std::any_of(cq.refill.begin(), cq.refill.end(), [id](const Drained& d) { return d.wc.wr_id == id; });
  }
  void post_some() {
    constexpr ibv_wr_opcode kOneSided[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    const bool one_sided = random() % (log.size() < 24 ? 2 : 32) != 0;
    const std::size_t count = random() % 4 == 0 ? up_to(4) : 1;
    ibv_sge sge{reinterpret_cast<std::uint64_t>(memory), 8, 1};
    std::vector<ibv_send_wr> list(count);
    const std::uint64_t first = requests.size(), before = qp.send.head;
    for (std::size_t i = 0; i < count; ++i) {
      list[i].wr_id = requests.size();
      list[i].sg_list = &sge;
      list[i].num_sge = 1;
      list[i].opcode = one_sided ? kOneSided[random() % 3] : IBV_WR_SEND;
      list[i].send_flags = random() % 8 == 0 ? IBV_SEND_SIGNALED : 0;
      if (i + 1 < count) list[i].next = &list[i + 1];
      requests.push_back({list[i].send_flags, false, false, false});
    }
    if (random() % 16 == 0) {
      list.back().send_flags |= IBV_SEND_INLINE;
      if (random() % 2 == 0) sge.length = 17;  // too long
    }
    if (random() % 16 == 0) g_takes = static_cast<int>(random() % count);
    ibv_send_wr* bad = nullptr;
    const bool whole = random() % 4 == 0;
    const int rc = whole ? post_send_whole(qp, list.data(), count) : post_send(&qp.qp.qp_base, list.data(), &bad);
    g_takes = -1;
    const std::uint64_t taken = qp.send.head - before;
    ASSERT_EQ(taken == count, rc == 0) << rc;
    if (!whole && rc != 0) {
      ASSERT_EQ(bad, &list[taken]);
    }
    full += taken == 0;
    for (std::uint64_t id = first; id < first + taken; ++id) {
      const std::uint64_t s = log.size();
      log.push_back(id);
      ASSERT_EQ(qp.send.slot(s).user_wr_id, id);
      ASSERT_TRUE(is_taken(qp.send.slot(s))) << "another's completion leads to " << s;
      if (s < kSlots) continue;
      ASSERT_TRUE(at(s - kSlots).has_run) << s;
      ASSERT_TRUE(!at(s - kSlots).is_due() || at(s - kSlots).told || is_drained(log[s - kSlots])) << s;
    }
  }
  void execute_one(bool fails = false) {
    if (g_posted.empty()) return;
    const Posted next = g_posted.front();
    const bool is_fence = next.opcode == IBV_WR_BIND_MW;
    fails = fails && !is_fence;
    execute(1, in_error ? IBV_WC_WR_FLUSH_ERR : fails ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS);
    in_error = in_error || fails;
    if (is_fence) return;
    const auto* slot = reinterpret_cast<const SlotHeader*>(next.wr_id);
    Request& request = at(qp.send.sequence_of(slot));
    ASSERT_FALSE(request.has_run);
    request.has_run = true;
    request.failed = in_error;
  }
  void note_told(const Ids& ids) {
    for (const std::uint64_t id : ids) {
      ASSERT_TRUE(id > 0 && id < requests.size()) << id;
      ASSERT_TRUE(requests[id].has_run && requests[id].is_due() && !requests[id].told) << id;
      requests[id].told = true;
    }
  }
  // Another polls and posts while this poller is held up with its completions.
  void poll_beside_others() {
    if (cq.refill_count != 0) return;  // it polls under a lock
    g_after_poll = [&] {
      for (std::uint64_t n = up_to(24); n > 0; --n) {
        if (random() % 2 == 0) post_some();
        if (random() % 2 == 0) execute_one();
        if (random() % 4 == 0) note_told(poll(static_cast<int>(up_to(4))));
      }
    };
    note_told(poll(static_cast<int>(up_to(4))));
  }
  void look() {
    const std::uint64_t known = frontier();
    for (std::uint64_t s = known < kSlots ? 0 : known - kSlots; s < known; ++s) ASSERT_TRUE(at(s).has_run) << s;
  }
  // A checkpoint, and then a program that has polled all.
  void settle() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    if (is_spared(qp, frontier())) (void)post_fence(qp, qp.sparing.of_checkpoint);
    while (!g_posted.empty()) execute_one();
    if (is_spared(qp, frontier())) (void)post_fence(qp, qp.sparing.of_checkpoint);  // the other was behind fewer
    while (!g_posted.empty()) execute_one();
    ASSERT_EQ(frontier(), qp.send.head);
    while (!cq.refill.empty()) note_told(poll(16));
    for (std::uint64_t s = 0; s < log.size(); ++s) ASSERT_EQ(at(s).told, at(s).is_due()) << s;
    ASSERT_TRUE(qp.send.has_room_for(kSlots));
    ++settled;
  }
  // What ibv_modify_qp does for a way to RESET.
  void reset() {
    g_posted.clear();
    g_completed.clear();
    purge_completions(cq, qp.qp_num);
    qp.send.clear();
    qp.sparing.reset();
    qp.send.messages = 0;
    log.clear();
    in_error = false;
  }
  // A checkpoint in whose image a tail has not run, and its restart: that tail goes down again, and nothing else.
  void forget_drained() SHADOWIB_NO_THREAD_SAFETY_ANALYSIS {
    cq.refill.clear();
    cq.note_refill();
  }
  void restart() {
    drain_completions(cq);
    std::uint64_t ran = 0;
    while (ran < log.size() && at(ran).has_run) ++ran;
    qp.sparing.proven = ran;  // by a fence, or by the peer's count
    retire_executed(qp);
    ASSERT_EQ(executed_frontier(qp), ran);
    g_posted.clear();
    qp.sparing.forget();
    context->translate = true;
    qp.turn_sends();
    qp.send.retire_to(ran);
    ASSERT_EQ(repost_sends(qp, ran), 0);
    ASSERT_EQ(g_posted.size(), log.size() - ran);
    for (const Posted& again : g_posted) {
      ASSERT_EQ(reinterpret_cast<const SlotHeader*>(again.wr_id)->user_wr_id, log[ran++]);
      ASSERT_NE(again.flags & IBV_SEND_SIGNALED, 0u);
    }
  }
  void step() {
    switch (random() % 64) {
      case 0:
        return settle();
      case 1:
        if (random() % 4 == 0) reset();
        return;
      case 2:
        return execute_one(random() % 4 == 0);
      case 3:
        return look();
      case 4:
        (void)post_fence(qp, qp.sparing.of_checkpoint);
        return;
      case 5:
        return poll_beside_others();
      default:
        if (const auto what = random() % 4; what < 2)
          post_some();
        else if (what == 2)
          execute_one();
        else
          note_told(poll(static_cast<int>(up_to(3))));
    }
  }

  std::mt19937 random{20261130};
  std::vector<Request> requests{1};  // by wr_id
  std::vector<std::uint64_t> log;    // wr_ids by sequence
  bool in_error = false;
  std::uint64_t full = 0, settled = 0;
};

TEST_F(SparedAtRandom, NoneIsLostOrToldOfTwice) {
  for (int n = 0; n < 150000 && !HasFatalFailure(); ++n) step();
  EXPECT_GT(requests.size(), 40000u);
  EXPECT_GT(qp.sparing.forced, 1000u);
  EXPECT_GT(full, 1000u) << "the queue was hardly ever full";
  EXPECT_GT(settled, 1000u);
}

TEST_F(SparedAtRandom, ARestartPostsAgainWhatHasNotRun) {
  for (int life = 0; life < 500 && !HasFatalFailure(); ++life) {
    std::destroy_at(&qp);
    std::construct_at(&qp);
    context->translate = false;
    cq.reserved = 0;
    SetUp();
    requests.resize(1);
    log.clear();
    in_error = false;
    forget_drained();
    for (std::uint64_t n = up_to(200); n > 0 && !HasFatalFailure(); --n) step();
    if (!in_error) restart();
    for (std::uint64_t n = up_to(100); n > 0 && !HasFatalFailure(); --n) step();
    if (!HasFatalFailure()) settle();
  }
  EXPECT_GT(settled, 500u);
}

}  // namespace
}  // namespace shadowib
