// Polls over a backend of one queue.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/event_delivery.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

std::deque<ibv_wc> g_real;
// What another thread does when a poll has reached the backend, or has taken what the backend has; once.
std::function<void()> g_before_poll, g_after_poll;

// Whether polls are those of a context whose ids are turned.
class PollTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    g_real.clear();
    g_backend = {};
    g_before_poll = g_after_poll = nullptr;
    g_backend.poll_cq = [](ibv_cq*, int count, ibv_wc* wc) {
      if (auto others = std::exchange(g_before_poll, nullptr)) std::thread(others).join();
      int n = 0;
      for (; n < count && !g_real.empty(); g_real.pop_front()) wc[n++] = g_real.front();
      if (auto others = std::exchange(g_after_poll, nullptr)) std::thread(others).join();
      return n;
    };
    qp.qp_num = {77};
    cq.cq.context = &context->program();
    ASSERT_TRUE(qp.send.create(16, 1, 0, false));
    qp.send.belongs_to(qp.qp_num);
  }
  static int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
    return (GetParam() ? poll_cq_turning : shadowib::poll_cq)(cq, count, wc);
  }
  // The backend completes the next request, which the program had posted with this wr_id.
  void complete(std::uint64_t wr_id) {
    SendSlot& slot = qp.send.slot(qp.send.head);
    slot.user_wr_id = wr_id;
    slot.pend(SlotHeader::kApart);
    ++qp.send.head;
    ibv_wc wc{};
    wc.wr_id = reinterpret_cast<std::uint64_t>(static_cast<SlotHeader*>(&slot));
    g_real.push_back(wc);
  }
  std::vector<std::uint64_t> poll(int count) {
    ibv_wc wc[16] = {};
    int n = poll_cq(&cq.cq, count, wc);
    std::vector<std::uint64_t> ids;
    for (int i = 0; i < n; ++i) {
      EXPECT_EQ(wc[i].qp_num, 77u);
      ids.push_back(wc[i].wr_id);
    }
    return ids;
  }
  std::unique_ptr<ShadowContext> context = std::make_unique<ShadowContext>();
  ShadowQp qp;
  ShadowCq cq;
};

using Ids = std::vector<std::uint64_t>;

// ibv_rc_pingpong -e arms the queue, polls once for two, and sleeps. A restart had drained the completion of its
// send; the peer's answer lay in the new queue before it was armed, so no event came for it: both ends slept for
// good.
TEST_P(PollTest, OneCallReturnsWhatWasDrainedAndWhatCameSince) {
  complete(1);
  drain_completions(cq);
  complete(2);
  EXPECT_EQ(poll(2), (Ids{1, 2}));
  EXPECT_EQ(poll(2), Ids{});
}

TEST_P(PollTest, OrderAndCountsHoldWhateverLiesWhere) {
  for (std::uint64_t i = 0; i < 5; ++i) complete(i);
  drain_completions(cq);
  for (std::uint64_t i = 5; i < 9; ++i) complete(i);
  EXPECT_EQ(poll(3), (Ids{0, 1, 2}));
  EXPECT_EQ(poll(4), (Ids{3, 4, 5, 6}));
  complete(9);
  EXPECT_EQ(poll(16), (Ids{7, 8, 9}));
  EXPECT_EQ(qp.send.retired(), 10u);
}

// A thread that sleeps on the channel has the event before the other's request for it returns. A request that counted
// as unanswered then would be made again by a restart, and be told once too often.
TEST_P(PollTest, AnEventTakenBeforeTheRequestReturnsAnswersIt) {
  static ShadowChannel channel;
  static ibv_comp_channel real_channel;
  static ibv_cq real_cq;
  channel.real = &real_channel;
  real_cq.cq_context = &cq;
  g_backend.get_cq_event = [](ibv_comp_channel*, ibv_cq** real) {
    *real = &real_cq;
    return 0;
  };
  g_backend.ack_cq_events = [](ibv_cq*, unsigned) {};
  g_backend.req_notify_cq = [](ibv_cq*, int) {
    std::thread([] { EXPECT_NE(next_event(channel), nullptr); }).join();
    return 0;
  };
  ASSERT_EQ(req_notify_cq(&cq.cq, 0), 0);
  EXPECT_FALSE(cq.arming.is_armed());
  g_backend.req_notify_cq = [](ibv_cq*, int) { return ENODEV; };
  ASSERT_EQ(req_notify_cq(&cq.cq, 0), ENODEV);
  EXPECT_FALSE(cq.arming.is_armed());
}

// A queue with a channel, whose backend tells when the test says.
class ToldPollTest : public PollTest {
 protected:
  void SetUp() override {
    PollTest::SetUp();
    told.clear();
    after_look = nullptr;
    channel.real = &real_channel;
    channel.channel.fd = channel.events.open(real_channel.fd);
    cq.cq.channel = &channel.channel;
    real_cq.cq_context = &cq;
    g_backend.req_notify_cq = [](ibv_cq*, int) { return 0; };
    g_backend.ack_cq_events = [](ibv_cq*, unsigned) {};
    g_backend.get_cq_event = [](ibv_comp_channel*, ibv_cq** real) {
      if (told.empty()) {
        if (auto then = std::exchange(after_look, nullptr)) then();
        return -1;
      }
      *real = told.front();
      told.pop_front();
      return 0;
    };
  }
  void TearDown() override {
    channel.events.close(channel.channel.fd);
    ::close(real_channel.fd);
  }
  bool readable() const {
    pollfd p{channel.channel.fd, POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
  }
  // A request is answered by what was drained, so that the backend still has it.
  void ask_for_what_was_drained() {
    complete(1);
    drain_completions(cq);
    EXPECT_FALSE(readable()) << "nobody has asked";
    ASSERT_EQ(req_notify_cq(&cq.cq, 0), 0);
    EXPECT_TRUE(readable());
    EXPECT_EQ(next_event(channel), &cq);
    EXPECT_FALSE(readable());
    EXPECT_EQ(poll(4), Ids{1});
  }
  // What the backend told of too often is told when the program asks again.
  void expect_told_at_request(std::uint64_t id) {
    EXPECT_EQ(next_event(channel), nullptr) << "two events for one request";
    ASSERT_EQ(req_notify_cq(&cq.cq, 0), 0);
    EXPECT_TRUE(readable());
    EXPECT_EQ(next_event(channel), &cq);
    EXPECT_EQ(poll(4), Ids{id});
  }

  static inline std::deque<ibv_cq*> told;
  static inline std::function<void()> after_look;  // what comes when the backend's events have been looked for; once
  static inline ibv_cq real_cq;
  ShadowChannel channel;
  ibv_comp_channel real_channel{nullptr, ::eventfd(0, EFD_CLOEXEC), 0};
};

// A program that polls, asks, and sleeps, is told by its adapter of what came between the two; a checkpoint there has
// drained it.
TEST_P(ToldPollTest, ARequestTellsOfWhatWasDrained) {
  static ShadowCq* asked;
  asked = &cq;
  ask_for_what_was_drained();
  // The backend still has the request, and answers it, once.
  complete(2);
  told.push_back(&real_cq);
  expect_told_at_request(2);
  ASSERT_EQ(req_notify_cq(&cq.cq, 0), 0);
  EXPECT_FALSE(readable()) << "all are polled";
  told.push_back(&real_cq);
  EXPECT_EQ(next_event(channel), &cq);
  // An adapter that tells at once, and a thread that has its event before the request returns.
  complete(3);
  drain_completions(cq);
  g_backend.req_notify_cq = [](ibv_cq*, int) {
    told.push_back(&real_cq);
    std::thread([] { EXPECT_EQ(next_event(*ShadowChannel::of(asked->cq.channel)), asked); }).join();
    return 0;
  };
  ASSERT_EQ(req_notify_cq(&cq.cq, 0), 0);
  EXPECT_EQ(next_event(channel), nullptr) << "it was told";
}

// The event that is due comes when the program has begun to ask. It answers the program, and the backend, which has
// been asked since, has another.
TEST_P(ToldPollTest, ASurplusEventThatComesDuringARequestIsTheOneEventOfIt) {
  ask_for_what_was_drained();
  after_look = [this] {
    complete(2);
    told.push_back(&real_cq);
  };
  ASSERT_EQ(req_notify_cq(&cq.cq, 0), 0);
  EXPECT_EQ(next_event(channel), &cq);
  EXPECT_EQ(poll(4), Ids{2});
  complete(3);
  told.push_back(&real_cq);
  expect_told_at_request(3);
}

// An event that no request waited for yet is taken by another thread just before the program's is noted.
TEST_P(ToldPollTest, WhatWasTakenJustBeforeTheRequestIsTold) {
  static ShadowCq* asked;
  asked = &cq;
  complete(1);
  g_backend.req_notify_cq = [](ibv_cq*, int) {
    asked->arming.note_event();
    EXPECT_TRUE(asked->arming.take_surplus());
    asked->arming.note_armed(false);
    return 0;
  };
  ASSERT_EQ(req_notify_cq(&cq.cq, 0), 0);
  EXPECT_TRUE(readable());
  EXPECT_EQ(next_event(channel), &cq);
  EXPECT_EQ(poll(4), Ids{1});
}

// It would be of a queue that is gone, or of another that was made in its place.
TEST_P(ToldPollTest, AnEventThatAThreadHasKeepsItsQueueUntilItIsAcknowledged) {
  ASSERT_EQ(req_notify_cq(&cq.cq, 0), 0);
  told.push_back(&real_cq);
  ASSERT_EQ(next_event(channel), &cq);
  std::atomic<bool> over{false};
  std::thread destroys([&] {
    cq.events.wait_for_all();
    over = true;
  });
  for (int i = 0; i < 50 && !over; ++i) ::usleep(1000);  // it does not come to its end
  EXPECT_FALSE(over);
  cq.events.acknowledge(1);
  destroys.join();
}

TEST_P(ToldPollTest, NoEventIsTakenWhileItsQueueIsDestroyed) {
  static ShadowContext context;
  static SpinLock* channel_lock;
  channel_lock = &channel.events.lock;
  cq.cq.context = &context.program();
  g_backend.get_async_event = [](ibv_context*, ibv_async_event*) { return -1; };
  g_backend.destroy_cq = [](ibv_cq*) {
    for (SpinLock* lock : {channel_lock, &context.async_events.lock})
      EXPECT_FALSE(lock->try_lock()) << "another thread may have its event, and look at it";
    return EBUSY;
  };
  ASSERT_EQ(req_notify_cq(&cq.cq, 0), 0);
  told.push_back(&real_cq);
  EXPECT_EQ(destroy_real_cq(cq), EBUSY);
  EXPECT_EQ(next_event(channel), &cq) << "it is still there, and so is its event";
  g_backend.destroy_cq = [](ibv_cq*) { return 0; };
  ASSERT_EQ(req_notify_cq(&cq.cq, 0), 0);
  told.push_back(&real_cq);
  EXPECT_EQ(destroy_real_cq(cq), 0);
  EXPECT_EQ(next_event(channel), nullptr);
}

// A running program drains, too: where it destroys a shared receive queue, for example.
TEST_P(PollTest, WhoAsksDuringADrainWaitsForIt) {
  ShadowChannel channel;
  const int real_fd = ::eventfd(0, EFD_CLOEXEC);
  channel.channel.fd = channel.events.open(real_fd);
  cq.cq.channel = &channel.channel;
  g_backend.req_notify_cq = [](ibv_cq*, int) { return 0; };
  complete(1);
  std::thread asking;
  const auto poll_backend = g_backend.poll_cq;
  static std::function<void()> after_poll;
  static int (*poll_it)(ibv_cq*, int, ibv_wc*);
  poll_it = poll_backend;
  std::atomic<bool> has_asked{false};
  after_poll = [&] {
    asking = std::thread([&] {
      EXPECT_EQ(req_notify_cq(&cq.cq, 0), 0);
      has_asked = true;
    });
    for (int i = 0; i < 50 && !has_asked; ++i) ::usleep(1000);  // it does not come to its end
    EXPECT_FALSE(has_asked);
  };
  g_backend.poll_cq = [](ibv_cq* real, int count, ibv_wc* wc) {
    const int n = poll_it(real, count, wc);
    if (n > 0) std::exchange(after_poll, nullptr)();
    return n;
  };
  drain_completions(cq);
  asking.join();
  g_backend.get_cq_event = [](ibv_comp_channel*, ibv_cq**) { return -1; };
  EXPECT_EQ(next_event(channel), &cq);
  channel.events.close(channel.channel.fd);
  ::close(real_fd);
}

TEST_P(PollTest, ADestroyedQueuePairLeavesNothing) {
  complete(1);
  drain_completions(cq);
  purge_completions(cq, {78});
  EXPECT_EQ(cq.refill_count.load(), 1u);
  purge_completions(cq, {77});
  EXPECT_EQ(poll(4), Ids{});
}

// A thread is in poll_cq, past the look at the refill queue, when another destroys a queue pair on the same
// completion queue and a completion of a third one comes in.
TEST_P(PollTest, DestroyingAQueuePairKeepsTheOrderOfOthers) {
  g_backend.purges_completions = true;
  complete(1);
  g_before_poll = [this] {
    purge_completions(cq, {78});
    complete(2);
  };
  EXPECT_EQ(poll(1), Ids{1});
  EXPECT_EQ(poll(4), Ids{2});
}

// The same where a post makes room by draining (next_slot in post.cc), on a queue whose completions are looked at.
TEST_P(PollTest, APostThatDrainsMeanwhileKeepsTheOrder) {
  cq.look_at_each();
  complete(1);
  g_before_poll = [this] {
    if (cq.refill_lock.try_lock()) {  // else the other thread waits until this poll is over
      cq.refill_lock.unlock();
      drain_completions(cq);
    }
    complete(2);
  };
  EXPECT_EQ(poll(1), Ids{1});
  EXPECT_EQ(poll(4), Ids{2});
}

// Polls take no lock, so a post that makes room may drain beside one: before the poll has taken its own, or after.
// Either way the program sees the completions of a queue in order.
class PollBesideDrain : public PollTest {
 protected:
  static constexpr std::uint32_t kReal = 200;

  void SetUp() override {
    PollTest::SetUp();
    context->numbered.insert({kReal}, &qp);
    ASSERT_TRUE(qp.receive.create(8, 1, 0, true));
    qp.receive.belongs_to(qp.qp_num);
    ASSERT_TRUE(shared.log.create(8, 1));
  }
  // Completions of these, in this order: of a send, a receive, a shared receive.
  void finish(SlotHeader& slot, std::uint64_t id) {
    slot.user_wr_id = id;
    ibv_wc wc{};
    wc.wr_id = reinterpret_cast<std::uint64_t>(&slot);
    wc.qp_num = kReal;
    g_real.push_back(wc);
  }
  void finish_send(std::uint64_t id, SlotHeader::Pending as = SlotHeader::kPlain) {
    SendSlot& slot = qp.send.slot(qp.send.head);
    slot.wr.send_flags = IBV_SEND_SIGNALED;
    slot.pend(as);
    ++qp.send.head;
    finish(slot, id);
  }
  void finish_receive(std::uint64_t id) {
    RecvSlot& slot = qp.receive.slot(qp.receive.head++);
    slot.pend(SlotHeader::kPlain);
    finish(slot, id);
  }
  void finish_shared(std::uint64_t id) { finish(*shared.log.take(), id); }
  void drain() { drain_completions(cq); }
  // As poll(), but a plain completion has the number that the backend gave it.
  Ids ids(int count) {
    ibv_wc wc[16] = {};
    const int n = poll_cq(&cq.cq, count, wc);
    Ids found;
    for (int i = 0; i < n; ++i) found.push_back(wc[i].wr_id);
    return found;
  }
  ShadowSrq shared{};
};

TEST_P(PollBesideDrain, WhatWasDrainedBeforeComesFirst) {
  finish_send(1);
  finish_receive(11);
  g_before_poll = [this] {
    drain();
    finish_send(2);
    finish_receive(12);
  };
  EXPECT_EQ(ids(2), (Ids{1, 11}));
  EXPECT_EQ(ids(4), (Ids{2, 12}));
  EXPECT_EQ(cq.refill_count.load(), 0u) << "no lock is needed any more";
}

TEST_P(PollBesideDrain, WhatWasDrainedAfterwardsComesLater) {
  for (std::uint64_t i : {1, 2, 3}) finish_send(i);
  for (std::uint64_t i : {11, 12}) finish_receive(i);
  g_after_poll = [this] { drain(); };  // of 2, 3, 11, 12
  EXPECT_EQ(ids(1), Ids{1});
  EXPECT_EQ(ids(8), (Ids{2, 3, 11, 12}));
}

TEST_P(PollBesideDrain, AnEmptyAnswerIsLookedAtAgain) {
  finish_send(1);
  g_before_poll = [this] { drain(); };
  EXPECT_EQ(ids(4), Ids{1});
}

// The slots of what was drained may be in use again before the poll comes to its end.
TEST_P(PollBesideDrain, AReusedSlotIsNotTakenForWhatItWas) {
  for (std::uint64_t i = 0; i < 8; ++i) finish_send(i);
  g_before_poll = [this] {
    drain();
    for (std::uint64_t i = 8; i < 24; ++i) finish_send(i);
  };
  Ids expected, found = ids(16);
  for (std::uint64_t i = 0; i < 24; ++i) expected.push_back(i);
  for (std::uint64_t id : ids(16)) found.push_back(id);
  EXPECT_EQ(found, expected);
}

TEST_P(PollBesideDrain, SharedReceivesOfAQueuePairKeepTheirOrder) {
  qp.srq = &shared;
  for (std::uint64_t i : {1, 2, 3}) finish_shared(i);
  g_after_poll = [this] { drain(); };
  EXPECT_EQ(ids(1), Ids{1});
  finish_shared(4);
  EXPECT_EQ(ids(8), (Ids{2, 3, 4}));
  EXPECT_EQ(qp.shared_consumed.load(), 4u);
  qp.srq = nullptr;
}

TEST_P(PollBesideDrain, WhatIsSwallowedLeavesNothing) {
  finish_send(1, SlotHeader::kForced);
  finish_send(2);
  g_before_poll = [this] {
    drain();
    finish_send(3, SlotHeader::kForced);
    finish_send(4);
  };
  EXPECT_EQ(ids(1), Ids{2});
  EXPECT_EQ(ids(4), Ids{4});
  EXPECT_EQ(qp.send.retired(), 4u);
}

// Many threads post without asking for completions, poll, and make room; each queue pair's come in order.
TEST_P(PollBesideDrain, ThreadsSeeEachOnceAndInOrder) {
  static SpinLock backend_lock;
  g_backend.poll_cq = [](ibv_cq*, int count, ibv_wc* wc) {
    SpinGuard guard(backend_lock);
    int n = 0;
    for (; n < count && !g_real.empty(); g_real.pop_front()) wc[n++] = g_real.front();
    return n;
  };
  constexpr std::uint64_t kRequests = 5000;
  std::atomic<bool> over{false};
  std::thread draining([&] {
    while (!over) drain();
  });
  std::thread posting([&] {
    for (std::uint64_t i = 0; i < kRequests;) {
      SpinGuard guard(backend_lock);
      if (qp.send.has_room()) finish_send(i++);
    }
  });
  std::uint64_t next = 0;
  for (bool in_order = true; next < kRequests && in_order;)
    for (std::uint64_t id : ids(3)) {
      in_order &= id == next++;
      EXPECT_TRUE(in_order) << id << " instead of " << next - 1;
    }
  over = true;
  draining.join();
  posting.join();
}

// Completions of shared receives among others: each names its queue pair as the program knows it, here after a
// restart.
TEST_P(PollTest, SharedReceivesNameTheirQueuePair) {
  ShadowQp sharing[2];
  for (std::uint32_t i : {0u, 1u}) {
    sharing[i].qp_num = {100 + i};
    context->numbered.insert({200 + i}, &sharing[i]);
  }
  SharedReceiveLog log;
  ASSERT_TRUE(log.create(8, 1));
  std::uint64_t id = 10;
  for (std::uint32_t real : {201, 200, 0, 201, 999, 200}) {  // 0: a send; 999: one that has just been destroyed
    if (real == 0) {
      complete(5);
      continue;
    }
    RecvSlot* slot = log.take();
    slot->user_wr_id = id++;
    ibv_wc wc{};
    wc.wr_id = reinterpret_cast<std::uint64_t>(static_cast<SlotHeader*>(slot));
    wc.qp_num = real;
    wc.status = g_real.size() == 5 ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
    g_real.push_back(wc);
  }
  ibv_wc wc[16] = {};
  ASSERT_EQ(poll_cq(&cq.cq, 16, wc), 6);
  const std::uint64_t ids[] = {10, 11, 5, 12, 13, 14};
  const std::uint32_t numbers[] = {101, 100, 77, 101, 999, 100};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(wc[i].wr_id, ids[i]);
    EXPECT_EQ(wc[i].qp_num, numbers[i]);
  }
  EXPECT_EQ(sharing[0].shared_consumed.load(), 1u) << "the second had an error";
  EXPECT_EQ(sharing[1].shared_consumed.load(), 2u);
  EXPECT_EQ(log.pending_count(), 0u);
}

// A datagram's receive belongs to its queue pair, but its completion has a sender to be turned.
TEST_P(PollTest, DatagramsNameTheirSender) {
  ShadowQp datagrams;
  datagrams.qp_num = {100};
  datagrams.qp.qp_base.qp_type = IBV_QPT_UD;
  context->numbered.insert({200}, &datagrams);
  ASSERT_TRUE(datagrams.receive.create(4, 1, 0, true));
  for (ibv_wc_status status : {IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR}) {
    RecvSlot& slot = datagrams.receive.slot(datagrams.receive.head++);
    slot.user_wr_id = 9;
    slot.pend(SlotHeader::kApart);
    ibv_wc real{};
    real.wr_id = reinterpret_cast<std::uint64_t>(static_cast<SlotHeader*>(&slot));
    real.qp_num = 200;
    real.src_qp = 7;
    real.status = status;
    g_real.push_back(real);
  }
  ibv_wc wc[2] = {};
  ASSERT_EQ(poll_cq(&cq.cq, 2, wc), 2);
  EXPECT_EQ(wc[0].wr_id, 9u);
  EXPECT_EQ(wc[0].qp_num, 100u);
  EXPECT_EQ(wc[0].src_qp, 1007u) << "as turn_source says";
  EXPECT_EQ(wc[1].src_qp, 7u) << "an error names nobody";
  EXPECT_EQ(datagrams.receive.retired(), 2u);
}

constexpr auto kNames = [](const auto& info) { return info.param ? "Turning" : "AsTheyAre"; };
INSTANTIATE_TEST_SUITE_P(Generations, PollTest, testing::Bool(), kNames);
INSTANTIATE_TEST_SUITE_P(Generations, ToldPollTest, testing::Bool(), kNames);
INSTANTIATE_TEST_SUITE_P(Generations, PollBesideDrain, testing::Bool(), kNames);

}  // namespace
}  // namespace shadowib
