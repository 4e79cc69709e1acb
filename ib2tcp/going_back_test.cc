// Clusters that go back to a checkpoint: every byte, number and addition arrives once, whoever goes back.
#include <cstring>
#include <random>

#include "ib2tcp/testing/two_clusters.h"

namespace shadowib::ib2tcp::testing {
namespace {

class GoingBack : public TwoClusters {};

class FewRetries : public TwoClusters {
 protected:
  FewRetries() : TwoClusters(std::size_t{1} << 30, 1) {}
};

// What the program has a completion of uses up no retries.
TEST_P(FewRetries, TheReceiverGetsWhatItHasForgotten) {
  for (std::uint64_t i = 0; i < 20; ++i) post_receive(i);
  for (int i = 0; i < 20; ++i) send();
  for (std::uint64_t i = 0; i < 20; ++i) expect_received(i), expect_sent(i);
  const Image image = b().checkpoint();
  for (std::uint64_t i = 20; i < 50; ++i) post_receive(i);
  for (int i = 0; i < 30; ++i) send();
  for (std::uint64_t i = 20; i < 50; ++i) expect_received(i), expect_sent(i);
  // The sender may write over what has been sent.
  std::memset(a().at(kNumbers), 'x', 8 * 1024);
  go_back(1, image);
  for (int i = 0; i < 10; ++i) send();
  for (std::uint64_t i = 20; i < 60; ++i) {
    if (i < 49 && i % 3 == 0) ::usleep(2000);  // without a receive for a while
    if (i < 49) post_receive(i);
    if (i == 48)
      for (std::uint64_t more = 49; more < 60; ++more) post_receive(more);
    expect_received(i);
  }
  for (std::uint64_t i = 50; i < 60; ++i) expect_sent(i);
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc)) << "a completion came twice";
  EXPECT_FALSE(b().poll(&wc));
  EXPECT_EQ(a().state(), IBV_QPS_RTS);
}

class OnlyReceives : public TwoClusters {
 protected:
  OnlyReceives() : TwoClusters(std::size_t{1} << 30, 7, false) {}
};

// B's queue pair is in RTR, and neither side has anything new to send.
TEST_P(OnlyReceives, TheReceiverGetsWhatItHasForgotten) {
  for (std::uint64_t i = 0; i < 20; ++i) post_receive(i);
  send();
  expect_received(0), expect_sent(0);
  const Image image = b().checkpoint();
  for (int i = 1; i < 20; ++i) send();
  for (std::uint64_t i = 1; i < 20; ++i) expect_received(i), expect_sent(i);
  go_back(1, image);
  for (std::uint64_t i = 1; i < 20; ++i) expect_received(i);
}

TEST_P(GoingBack, QueuePairsWaitForAsLongAsTheReceiverIsAway) {
  post_receive(0);
  send();
  expect_received(0);
  expect_sent(0);
  const Image image = b().checkpoint();
  b().end();
  ASSERT_EQ(a().ops().cluster_gone(1, 0), 0);
  send();
  ::usleep(1'500'000);  // longer than retries last
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc));
  go_back(1, image);
  post_receive(1);
  expect_received(1);
  expect_sent(1);
}

// The word of a recovery comes later than retries last.
TEST_P(GoingBack, QueuePairsWaitBeforeAnybodyKnowsThatTheReceiverGoesBack) {
  post_receive(0);
  send();
  expect_received(0);
  expect_sent(0);
  const Image image = b().checkpoint();
  a().member().process.others_fail_ = true;
  b().end();
  send();
  const auto asked = [&] {
    std::lock_guard<std::mutex> guard(a().member().process.mutex_);
    return a().member().process.lost_clusters_[1];
  };
  ASSERT_TRUE(eventually([&] { return asked() >= 2; }, 20000));
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc));
  EXPECT_EQ(a().state(), IBV_QPS_RTS);
  go_back(1, image);
  post_receive(1);
  expect_received(1);
  expect_sent(1);
}

// What is known of the process before says nothing of the one that has come back, which takes its time.
TEST_P(GoingBack, QueuePairsWaitWhileTheReceiverIsBeingRestored) {
  post_receive(0);
  send();
  expect_received(0);
  expect_sent(0);
  const Image image = b().checkpoint();
  Process& process = a().member().process;
  process.others_fail_ = true;
  b().end();
  send();
  ASSERT_TRUE(eventually([&] {
    std::lock_guard<std::mutex> guard(process.mutex_);
    return process.lost_clusters_[1] != 0;
  }));
  ASSERT_EQ(a().ops().cluster_gone(1, 0), 0);
  process.others_fail_ = false;  // its processes live again
  incarnations_[1] = 1;
  std::copy(std::begin(incarnations_), std::end(incarnations_), a().member().state.incarnations);
  a().member().tell();
  b().before_opening = [this] {
    b().member().process.stop_helper();
    ::usleep(1'500'000);  // longer than retries last
    b().member().process.start_helper();
  };
  b().restart(image, incarnations_);
  post_receive(1);
  expect_received(1);
  expect_sent(1);
}

// It fails as anywhere if nobody of the peer's cluster has died.
TEST_P(GoingBack, APeerThatHasEndedIsAnError) {
  post_receive(0);
  send();
  expect_received(0);
  expect_sent(0);
  b().end();
  send();
  EXPECT_EQ(describe(a().wait()), describe(1, IBV_WC_RETRY_EXC_ERR));
  std::lock_guard<std::mutex> guard(a().member().process.mutex_);
  EXPECT_EQ(a().member().process.lost_clusters_[1], 1);
}

TEST_P(GoingBack, LargeWritesComeAgainWithTheBytesOfThen) {
  const auto write = [&](char fill, std::uint64_t id) {
    std::memset(a().at(kBlock), fill, kBlockBytes);
    a().post_send(id, IBV_WR_RDMA_WRITE, kBlock, kBlockBytes, reinterpret_cast<std::uint64_t>(b().at(kBlock)),
                  b().key());
    expect_sent(id);
  };
  write('a', 1);
  const Image image = b().checkpoint();
  write('b', 2);
  write('c', 3);
  std::memset(a().at(kBlock), 'x', kBlockBytes);
  go_back(1, image);
  const auto all_are = [&](char fill) {
    for (std::size_t i = 0; i < kBlockBytes; ++i)
      if (*static_cast<volatile char*>(b().at(kBlock + i)) != fill) return false;
    return true;
  };
  EXPECT_TRUE(eventually([&] { return all_are('c'); }, 20000));
}

// A goes back to a moment at which it did not know what B had run, and B stays.
TEST_P(GoingBack, TheSenderHearsWhatHasRun) {
  for (std::uint64_t i = 0; i < 40; ++i) post_receive(i);
  for (int i = 0; i < 10; ++i) send();
  for (std::uint64_t i = 0; i < 10; ++i) expect_received(i), expect_sent(i);
  for (int i = 0; i < 10; ++i) send();
  const Image image = a().checkpoint();
  for (std::uint64_t i = 10; i < 20; ++i) expect_received(i), expect_sent(i);
  go_back(0, image);
  for (std::uint64_t i = 10; i < 20; ++i) expect_sent(i);
  send();
  expect_received(20);
  expect_sent(20);
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc));
  EXPECT_FALSE(b().poll(&wc));
}

// More than the last 16.
TEST_P(GoingBack, AtomicsRunOnceAndHaveTheResultOfThen) {
  constexpr std::uint64_t kAtomics = 40;
  const auto add = [&](std::uint64_t id) {
    a().post_send(id, IBV_WR_ATOMIC_FETCH_AND_ADD, kResults + 8 * id, 8,
                  reinterpret_cast<std::uint64_t>(b().at(kCounter)), b().key());
  };
  a().member().freeze(true);  // so that none leaves before the checkpoint
  for (std::uint64_t id = 0; id < kAtomics; ++id) add(id);
  const Image image = a().checkpoint();
  for (std::uint64_t id = 0; id < kAtomics; ++id) expect_sent(id);
  ASSERT_EQ(b().number_at(kCounter), kAtomics);
  // B's own additions meanwhile: an atomic that ran again would tell.
  *reinterpret_cast<std::uint64_t*>(b().at(kCounter)) += 1000;
  go_back(0, image);
  for (std::uint64_t id = 0; id < kAtomics; ++id) {
    expect_sent(id);
    EXPECT_EQ(a().number_at(kResults + 8 * id), id);
  }
  EXPECT_EQ(b().number_at(kCounter), 1000 + kAtomics);
  add(kAtomics);
  expect_sent(kAtomics);
  EXPECT_EQ(a().number_at(kResults + 8 * kAtomics), 1000 + kAtomics);
}

// What is sent again is not lost by a request behind it that cannot be sent.
TEST_P(GoingBack, ARequestThatFailsWaitsForWhatIsSentAgain) {
  const Image image = b().checkpoint();
  for (std::uint64_t i = 0; i < 10; ++i) post_receive(i);
  for (int i = 0; i < 10; ++i) send();
  for (std::uint64_t i = 0; i < 10; ++i) expect_received(i), expect_sent(i);
  go_back(1, image);
  a().post_send(10, IBV_WR_SEND, kNumbers, 8, 0, 0, 0xbad00);
  ::usleep(20000);  // in which it could fail
  for (std::uint64_t i = 0; i < 10; ++i) post_receive(i);
  for (std::uint64_t i = 0; i < 10; ++i) expect_received(i);
  EXPECT_EQ(describe(a().wait()), describe(10, IBV_WC_LOC_PROT_ERR));
}

TEST_P(GoingBack, ReadsAreAskedAgain) {
  std::memset(b().at(kBlock), 'r', kBlockBytes);
  a().member().freeze(true);
  a().post_send(1, IBV_WR_RDMA_READ, kBlock, kBlockBytes, reinterpret_cast<std::uint64_t>(b().at(kBlock)), b().key());
  const Image image = a().checkpoint();
  expect_sent(1);
  std::memset(b().at(kBlock), 's', kBlockBytes);
  go_back(0, image);
  expect_sent(1);
  EXPECT_EQ(*a().at(kBlock), 's');
  EXPECT_EQ(*a().at(kBlock + kBlockBytes - 1), 's');
}

// Each from a checkpoint of its own: the receiver's is the older one, and the sender's log has what lies between.
TEST_P(GoingBack, TheWholeJobFromALine) {
  for (std::uint64_t i = 0; i < 10; ++i) post_receive(i);
  for (int i = 0; i < 10; ++i) send();
  for (std::uint64_t i = 0; i < 10; ++i) expect_received(i), expect_sent(i);
  const Image older = b().checkpoint();
  for (std::uint64_t i = 10; i < 30; ++i) post_receive(i);
  for (int i = 0; i < 10; ++i) send();
  for (std::uint64_t i = 10; i < 20; ++i) expect_received(i), expect_sent(i);
  for (int i = 0; i < 5; ++i) send();  // in A's image without completions
  const Image younger = a().checkpoint();
  for (std::uint64_t i = 20; i < 25; ++i) expect_received(i), expect_sent(i);
  a().end();
  go_back(1, older, false);
  next_number_ = 25;
  go_back(0, younger, false);
  std::copy(std::begin(incarnations_), std::end(incarnations_), b().member().state.incarnations);
  b().member().tell();
  for (int i = 0; i < 5; ++i) send();
  for (std::uint64_t i = 10; i < 30; ++i) {
    post_receive(i);
    expect_received(i);
  }
  for (std::uint64_t i = 20; i < 30; ++i) expect_sent(i);
  ibv_wc wc;
  EXPECT_FALSE(a().poll(&wc));
  EXPECT_FALSE(b().poll(&wc));
}

// Both ways, at moments of chance, again and again: one side's messages at a time, as the rule has it.
TEST_P(GoingBack, AtAnyMoment) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::uint64_t posted = 0, received = 0, sent = 0;
  const auto step = [&](std::uint64_t until) {
    while (received < until) {
      while (next_number_ < until && next_number_ - sent < 64) send();
      while (posted < until && posted - received < 16) post_receive(posted++);
      ibv_wc wc;
      while (a().poll(&wc)) ASSERT_EQ(describe(wc), describe(sent++, IBV_WC_SUCCESS));
      while (b().poll(&wc)) {
        ASSERT_EQ(describe(wc), describe(received, IBV_WC_SUCCESS));
        ASSERT_EQ(b().number_at(kReceived + 8 * (received % 1024)), received);
        ++received;
      }
    }
  };
  for (int round = 0; round < 12; ++round) {
    step(received + random() % 100);
    const Image image = b().checkpoint();
    // The image has its receives; those completions that nobody has polled are in it, too.
    const std::uint64_t at_received = received, at_posted = posted;
    step(received + random() % 200);
    for (std::uint64_t i = random() % 30; i > 0 && next_number_ - sent < 64; --i) send();
    if (random() % 2 == 0) ::usleep(random() % 2000);
    go_back(1, image);
    received = at_received;
    posted = at_posted;
  }
  step(next_number_ + 100);
  while (sent < next_number_) expect_sent(sent), ++sent;
  EXPECT_EQ(a().state(), IBV_QPS_RTS);
  EXPECT_EQ(b().state(), IBV_QPS_RTS);
}

// B has run what A's checkpoint does not know to have posted: no line has both.
TEST_P(GoingBack, CheckpointsThatContradictEachOtherAreAnError) {
  const Image image = a().checkpoint();
  post_receive(0);
  send();
  expect_received(0);
  expect_sent(0);
  go_back(0, image);
  EXPECT_TRUE(eventually([&] { return a().state() == IBV_QPS_ERR; }));
  EXPECT_NE(a().member().process.log().find("do not belong together"), std::string::npos);
  EXPECT_EQ(b().state(), IBV_QPS_RTS);
}

// A second restart from an image of a process that has gone back itself; and a message that was replayed is in it.
TEST_P(GoingBack, AgainAndAgain) {
  Image image = b().checkpoint();
  for (std::uint64_t round = 0; round < 4; ++round) {
    send();
    go_back(1, image);
    if (round % 2 == 1) continue;
    for (; received_ < next_number_; ++received_) {
      post_receive(received_);
      expect_received(received_);
    }
    image = b().checkpoint();
  }
  for (; received_ < next_number_; ++received_) {
    post_receive(received_);
    expect_received(received_);
  }
  for (std::uint64_t i = 0; i < next_number_; ++i) expect_sent(i);
}

// The word on the log takes the acknowledgement with it that was owed. It comes right behind the execution, many
// times.
TEST_P(GoingBack, AnAcknowledgementBesideAWordOnTheLogIsHeard) {
  b().checkpoint();
  for (int round = 0; round < 30 && !HasFailure(); ++round, ++received_) {
    post_receive(received_);
    send();
    expect_received(received_);
    b().ops().clc_collected(b().member().state.sn);
    expect_sent(received_);
  }
}

// No more than a few are under way at a time, so that a short queue is enough for their completions.
class ShortQueue : public TwoClusters {
 protected:
  ShortQueue() : TwoClusters(std::size_t{1} << 30, 7, true, 16) {}
};

TEST_P(ShortQueue, HasRoomForAllThatComesAgain) {
  for (std::uint64_t i = 0; i < 60; ++i) post_receive(i);
  const Image image = b().checkpoint();
  for (std::uint64_t i = 0; i < 60; ++i) send(), expect_received(i), expect_sent(i);
  go_back(1, image);
  ASSERT_TRUE(
      eventually([&] { return a().ops().gate_earliest(1) == kGateNothing || b().state() == IBV_QPS_ERR; }, 20000));
  EXPECT_EQ(b().state(), IBV_QPS_RTS);
  for (std::uint64_t i = 0; i < 60; ++i) expect_received(i);
  post_receive(60);
  send(), expect_received(60), expect_sent(60);
}

// What the program itself overruns later is an error, as in any process.
TEST_P(ShortQueue, IsOverrunOnceNothingComesAgain) {
  for (std::uint64_t i = 0; i < 20; ++i) post_receive(i);
  const Image image = b().checkpoint();
  for (std::uint64_t i = 0; i < 20; ++i) send(), expect_received(i), expect_sent(i);
  go_back(1, image);
  for (std::uint64_t i = 0; i < 20; ++i) expect_received(i);
  std::uint64_t next = 20;
  for (; next < 120; ++next) post_receive(next), send(), expect_received(next), expect_sent(next);
  EXPECT_EQ(b().member().process.log().find("is overrun"), std::string::npos);
  ibv_wc wc;
  for (int i = 0; i < 100 && b().state() == IBV_QPS_RTS; ++i, ++next) {  // the program of B looks at none of them
    post_receive(next), send();
    ASSERT_TRUE(eventually([&] { return a().poll(&wc) || b().state() == IBV_QPS_ERR; }));
  }
  EXPECT_EQ(b().state(), IBV_QPS_ERR);
  EXPECT_NE(b().member().process.log().find("is overrun"), std::string::npos);
}

// An overrun would end the queue pair, with all that it has still to send again.
TEST_P(ShortQueue, HasRoomWhileSomethingIsSentAgain) {
  const Image image = b().checkpoint();
  for (std::uint64_t i = 0; i < 5; ++i) post_receive(i), send(), expect_received(i), expect_sent(i);
  for (std::uint64_t i = 0; i < 20; ++i) a().post_receive(100 + i, kReceived, 8);
  go_back(1, image);
  for (std::uint64_t i = 0; i < 20; ++i) {
    b().post_send(i, IBV_WR_SEND, kNumbers, 8);
    ASSERT_EQ(describe(b().wait()), describe(i, IBV_WC_SUCCESS));
  }
  for (std::uint64_t i = 0; i < 5; ++i) post_receive(i), expect_received(i);
  EXPECT_EQ(a().state(), IBV_QPS_RTS);
  for (std::uint64_t i = 0; i < 20; ++i) ASSERT_EQ(describe(a().wait()), describe(100 + i, IBV_WC_SUCCESS));
}

TEST_P(GoingBack, WhatMakesNoSenseIsRefused) {
  const Image image = b().checkpoint();
  const BackendOps& ops = b().ops();
  EXPECT_EQ(ops.restore_identity(image.identity.data(), image.identity.size()), EBUSY);
  EXPECT_EQ(ops.restore_identity(image.identity.data(), 3), EINVAL);
  EXPECT_EQ(ops.want_number(kNumberOfQueuePair, image.qp_num), EINVAL);
  Member newcomer(exchange_, GetParam(), state_of(0, 1));
  std::string other = image.identity;
  // Another cluster's process has that LID.
  Process thief(exchange_, ProcessOptions{.transport = GetParam()});
  ClusterState state = state_of(0, 1);
  ASSERT_EQ(thief.ops().set_cluster(&state), 0);
  ASSERT_EQ(thief.ops().restore_identity(other.data(), other.size()), 0);
  int count = 0;
  ibv_device** list = thief.ops().get_device_list(&count);
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(thief.ops().open_device(list[0]), nullptr);
  EXPECT_EQ(thief.last_errno(), EADDRINUSE);
  EXPECT_EQ(thief.ops().want_number(kNumberOfQueuePair, 0), EINVAL);
  EXPECT_EQ(thief.ops().want_number(kNumberOfQueuePair, 0xffffff), EINVAL);
}

INSTANTIATE_TEST_SUITE_P(Transports, GoingBack, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, FewRetries, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, OnlyReceives, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, ShortQueue, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });

}  // namespace
}  // namespace shadowib::ib2tcp::testing
