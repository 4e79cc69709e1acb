// Clusters that go back to a checkpoint: what is sent again by several processes keeps the order of their
// completions.
#include <cstring>

#include "ib2tcp/testing/going_back.h"

namespace shadowib::ib2tcp::testing {
namespace {

constexpr std::size_t kNumbers = 0, kReceived = 64 << 10, kBlock = 256 << 10;

// Processes A1 and A2 of cluster 0 send to B1 and B2 of cluster 1, which goes back. A1 and A2 tell each other what is
// left, as their agents do.
class OrderOfCompletions : public ::testing::TestWithParam<std::string> {
 protected:
  OrderOfCompletions() : exchange_(std::make_shared<FakeExchange>()) {
    for (unsigned i = 0; i < 4; ++i) {
      ClusterState state = state_of(i / 2, 1);
      state.depends[1 - i / 2] = 1000;
      sides_[i] = std::make_unique<Side>(exchange_, GetParam(), state, std::size_t{1} << 30);
    }
    for (unsigned i = 0; i < 2; ++i) {
      a(i).connect_to(b(i).lid(), b(i).qp_num());
      b(i).connect_to(a(i).lid(), a(i).qp_num());
    }
  }
  Side& a(unsigned i) { return *sides_[i]; }
  Side& b(unsigned i) { return *sides_[2 + i]; }

  // One message of A's process i, its completion, and the message at B's, in this order.
  void send(unsigned i, std::uint64_t id) {
    b(i).post_receive(id, kReceived, 8);
    a(i).post_send(id, IBV_WR_SEND, kNumbers, 8);
    EXPECT_EQ(describe(a(i).wait()), describe(id, IBV_WC_SUCCESS));
    EXPECT_EQ(describe(b(i).wait()), describe(id, IBV_WC_SUCCESS));
  }
  // The same, without a completion.
  void send_untold(unsigned i, std::uint64_t id) {
    const std::uint64_t before = a(i).executed();
    a(i).signals = false;
    b(i).post_receive(id, kReceived, 8);
    a(i).post_send(id, IBV_WR_SEND, kNumbers, 8);
    a(i).signals = true;
    EXPECT_EQ(describe(b(i).wait()), describe(id, IBV_WC_SUCCESS));
    EXPECT_TRUE(eventually([&] { return a(i).executed() == before + 1; }));
  }
  void exchange_gates(std::uint64_t skew = 0) {
    const std::uint64_t left[] = {a(0).ops().gate_earliest(1), a(1).ops().gate_earliest(1)};
    for (unsigned i = 0; i < 2; ++i) {
      const GateState others{left[1 - i], skew, i == 0, 0};
      EXPECT_EQ(a(i).ops().set_gate(1, &others), 0);
    }
  }
  void shut_gates() {
    const GateState unknown{0, 0, 0, 0};
    for (unsigned i = 0; i < 2; ++i) EXPECT_EQ(a(i).ops().set_gate(1, &unknown), 0);
  }
  void go_back(const Image& first, const Image& second) {
    b(0).end();
    b(1).end();
    ++incarnations_[1];
    for (unsigned i = 0; i < 2; ++i) EXPECT_EQ(a(i).ops().cluster_gone(1, incarnations_[1] - 1), 0);
    b(0).restart(first, incarnations_);
    b(1).restart(second, incarnations_);
    for (unsigned i = 0; i < 2; ++i) {
      std::copy(std::begin(incarnations_), std::end(incarnations_), a(i).member().state.incarnations);
      a(i).member().tell();
    }
  }
  // What A's process 1 sends now waits, after B has gone back, for what its process 0 has sent.
  void expect_that_another_waits(const Image& first, const Image& second) {
    send(1, 3);
    shut_gates();
    go_back(first, second);
    exchange_gates();
    b(1).post_receive(3, kReceived, 8);
    EXPECT_FALSE(comes_soon(1));
  }
  // True if B's process i has a message within a time in which one that may come does.
  bool comes_soon(unsigned i) {
    ibv_wc wc;
    return eventually([&] { return b(i).poll(&wc); }, 300);
  }

  std::shared_ptr<FakeExchange> exchange_;
  std::unique_ptr<Side> sides_[4];
  std::uint32_t incarnations_[kMaxBackendClusters] = {};
};

TEST_P(OrderOfCompletions, HoldsOverProcesses) {
  const Image first = b(0).checkpoint(), second = b(1).checkpoint();
  send(0, 1);  // A1 tells A2 of its completion, and A2 sends
  send(1, 2);
  shut_gates();
  go_back(first, second);
  b(1).post_receive(2, kReceived, 8);
  EXPECT_FALSE(comes_soon(1)) << "nobody has said what is left";
  exchange_gates();
  EXPECT_EQ(a(0).ops().gate_earliest(1) < a(1).ops().gate_earliest(1), true);
  EXPECT_FALSE(comes_soon(1)) << "B1 has not had its message yet";
  // New requests wait as well.
  a(1).post_send(3, IBV_WR_SEND, kNumbers, 8);
  b(1).post_receive(3, kReceived, 8);
  b(0).post_receive(1, kReceived, 8);
  EXPECT_EQ(describe(b(0).wait()), describe(1, IBV_WC_SUCCESS));
  ASSERT_TRUE(eventually([&] { return a(0).ops().gate_earliest(1) == kGateNothing; }));
  EXPECT_FALSE(comes_soon(1)) << "A2 has not heard of it";
  exchange_gates();
  EXPECT_EQ(describe(b(1).wait()), describe(2, IBV_WC_SUCCESS));
  EXPECT_EQ(describe(b(1).wait()), describe(3, IBV_WC_SUCCESS));
  EXPECT_EQ(describe(a(1).wait()), describe(3, IBV_WC_SUCCESS));
  EXPECT_EQ(a(1).ops().gate_earliest(1), kGateNothing);
}

// A1's messages have all run, and B1 destroyed its queue pair before the CLC: nobody can say how far it has come.
TEST_P(OrderOfCompletions, APeerThatWasDestroyedKeepsNobodyWaiting) {
  send(0, 1);
  b(0).destroy();
  const Image second = b(1).checkpoint();
  send(1, 2);
  shut_gates();
  b(1).end();
  ++incarnations_[1];
  for (unsigned i = 0; i < 2; ++i) EXPECT_EQ(a(i).ops().cluster_gone(1, incarnations_[1] - 1), 0);
  const std::string identity = b(0).identity();
  ClusterState state = b(0).member().state;
  b(0).end();
  std::copy(std::begin(incarnations_), std::end(incarnations_), state.incarnations);
  Member without(exchange_, GetParam(), state, identity);
  without.freeze(false);
  b(1).restart(second, incarnations_);
  for (unsigned i = 0; i < 2; ++i) {
    std::copy(std::begin(incarnations_), std::end(incarnations_), a(i).member().state.incarnations);
    a(i).member().tell();
  }
  EXPECT_TRUE(eventually([&] { return a(0).ops().gate_earliest(1) == kGateNothing; }));
  exchange_gates();
  b(1).post_receive(2, kReceived, 8);
  EXPECT_EQ(describe(b(1).wait()), describe(2, IBV_WC_SUCCESS));
  // What it sends now fails, and does not wait for a cluster that lives.
  a(0).post_send(3, IBV_WR_SEND, kNumbers, 8);
  EXPECT_EQ(describe(a(0).wait()), describe(3, IBV_WC_RETRY_EXC_ERR));
}

// A program knows nothing of a request that has run before a completion tells: its own one, or one behind it.
TEST_P(OrderOfCompletions, WhatNoCompletionHasToldOfKeepsNobodyWaiting) {
  const Image first = b(0).checkpoint(), second = b(1).checkpoint();
  send_untold(0, 1);
  send(1, 2);
  shut_gates();
  go_back(first, second);
  exchange_gates();
  b(1).post_receive(2, kReceived, 8);
  EXPECT_EQ(describe(b(1).wait()), describe(2, IBV_WC_SUCCESS));
  EXPECT_NE(a(0).ops().gate_earliest(1), kGateNothing) << "it has to be sent again all the same";
  b(0).post_receive(1, kReceived, 8);
  EXPECT_EQ(describe(b(0).wait()), describe(1, IBV_WC_SUCCESS));
  EXPECT_TRUE(eventually([&] { return a(0).ops().gate_earliest(1) == kGateNothing; }));
}

TEST_P(OrderOfCompletions, ACompletionTellsOfAllBeforeIt) {
  const Image first = b(0).checkpoint(), second = b(1).checkpoint();
  send_untold(0, 1);
  send(0, 2);
  send(1, 3);
  shut_gates();
  go_back(first, second);
  exchange_gates();
  b(1).post_receive(3, kReceived, 8);
  b(0).post_receive(1, kReceived, 8);
  EXPECT_EQ(describe(b(0).wait()), describe(1, IBV_WC_SUCCESS));
  exchange_gates();
  EXPECT_FALSE(comes_soon(1));
  b(0).post_receive(2, kReceived, 8);
  EXPECT_EQ(describe(b(0).wait()), describe(2, IBV_WC_SUCCESS));
  EXPECT_TRUE(eventually([&] { return a(0).ops().gate_earliest(1) == kGateNothing; }));
  exchange_gates();
  EXPECT_EQ(describe(b(1).wait()), describe(3, IBV_WC_SUCCESS));
}

// So do the completion of a request that needs no peer, and the word that a queue pair has drained.
TEST_P(OrderOfCompletions, ALocalRequestTellsOfAllBeforeIt) {
  const Image first = b(0).checkpoint(), second = b(1).checkpoint();
  send_untold(0, 1);
  a(0).post_bind(2, kBlock, 8);
  EXPECT_EQ(describe(a(0).wait()), describe(2, IBV_WC_SUCCESS));
  expect_that_another_waits(first, second);
}

TEST_P(OrderOfCompletions, ADrainedQueueTellsOfAll) {
  const Image first = b(0).checkpoint(), second = b(1).checkpoint();
  send_untold(0, 1);
  a(0).drain();
  expect_that_another_waits(first, second);
}

// Both send in turn, each message behind the other side's. With a completion for each fourth one, each has to hear of
// the other one that often, and not for each message. It says how far the other one has to come.
TEST_P(OrderOfCompletions, HandsOverForEachCompletionAndNotForEachMessage) {
  constexpr std::uint64_t kMessages = 40, kOfEach = kMessages / 2;
  const Image first = b(0).checkpoint(), second = b(1).checkpoint();
  for (std::uint64_t id = 0; id < kMessages; ++id)
    id % 8 >= 6 ? send(static_cast<unsigned>(id % 2), id) : send_untold(static_cast<unsigned>(id % 2), id);
  shut_gates();
  go_back(first, second);
  for (std::uint64_t id = 0; id < kMessages; ++id) b(static_cast<unsigned>(id % 2)).post_receive(id, kReceived, 8);
  std::uint64_t there[] = {0, 0}, told[] = {0, 0}, hand_overs = 0;
  ASSERT_TRUE(eventually([&] {
    ibv_wc wc;
    for (unsigned i = 0; i < 2; ++i) {
      while (b(i).poll(&wc)) ++there[i];
      const std::uint64_t left = a(1 - i).gate().earliest;
      if (left == told[i] || (told[i] != 0 && left < a(i).gate().awaits)) continue;
      const GateState others{told[i] = left, 0, i == 0, 0};
      EXPECT_EQ(a(i).ops().set_gate(1, &others), 0);
      ++hand_overs;
    }
    return told[0] == kGateNothing && told[1] == kGateNothing;
  }));
  for (unsigned i = 0; i < 2; ++i) {
    ibv_wc wc;
    while (b(i).poll(&wc)) ++there[i];
    EXPECT_EQ(there[i], kOfEach);
  }
  EXPECT_LE(hand_overs, kMessages / 4 + 4);
}

// The other way round it need not hold, and B may well wait for it: B1 had no receive before B2's message.
TEST_P(OrderOfCompletions, NothingWaitsForWhatCameLater) {
  const Image first = b(0).checkpoint(), second = b(1).checkpoint();
  send(1, 2);
  send(0, 1);
  shut_gates();
  go_back(first, second);
  exchange_gates();
  b(1).post_receive(2, kReceived, 8);
  EXPECT_EQ(describe(b(1).wait()), describe(2, IBV_WC_SUCCESS));
}

TEST_P(OrderOfCompletions, IsLostWithoutTheGate) {
  const Image first = b(0).checkpoint(), second = b(1).checkpoint();
  send(0, 1);
  send(1, 2);
  go_back(first, second);
  b(1).post_receive(2, kReceived, 8);
  EXPECT_EQ(describe(b(1).wait()), describe(2, IBV_WC_SUCCESS));  // and B1 has none yet
}

// Many messages in turn, within a skew that is longer than any of them takes. Several times, since a RESUME may bring
// the acknowledgement that the next message waits for, or not.
TEST_P(OrderOfCompletions, TwoThatWaitForEachOtherGoOn) {
  constexpr std::uint64_t kSkewNs = 10'000'000'000;
  const Image first = b(0).checkpoint(), second = b(1).checkpoint();
  for (std::uint64_t id = 0; id < 20; ++id) send(id % 2, id);
  for (int round = 0; round < 5; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    shut_gates();
    go_back(first, second);
    for (std::uint64_t id = 0; id < 20; ++id) b(id % 2).post_receive(id, kReceived, 8);
    // Whenever one is there, all before it are.
    std::uint64_t next[] = {0, 1};
    ASSERT_TRUE(eventually(
        [&] {
          exchange_gates(kSkewNs);
          for (unsigned i = 0; i < 2; ++i) {
            ibv_wc wc, before;
            if (!b(i).poll(&wc)) continue;
            EXPECT_EQ(describe(wc), describe(next[i], IBV_WC_SUCCESS));
            while (next[1 - i] < next[i] && b(1 - i).poll(&before)) next[1 - i] += 2;
            EXPECT_GT(next[1 - i], next[i]);
            next[i] += 2;
          }
          return next[0] + next[1] >= 41;
        },
        20000));
  }
}

// What a survivor would answer may tell of what is still to come.
TEST_P(OrderOfCompletions, AnswersWaitToo) {
  const Image first = b(0).checkpoint(), second = b(1).checkpoint();
  send(0, 1);
  std::memset(a(1).at(kBlock), 'l', 8);  // later than that
  shut_gates();
  go_back(first, second);
  exchange_gates();
  std::memset(b(1).at(kBlock), 0, 8);
  b(1).post_send(5, IBV_WR_RDMA_READ, kBlock, 8, reinterpret_cast<std::uint64_t>(a(1).at(kBlock)), a(1).key());
  EXPECT_FALSE(comes_soon(1));
  b(0).post_receive(1, kReceived, 8);
  EXPECT_EQ(describe(b(0).wait()), describe(1, IBV_WC_SUCCESS));
  ASSERT_TRUE(eventually([&] { return a(0).ops().gate_earliest(1) == kGateNothing; }));
  exchange_gates();
  EXPECT_EQ(describe(b(1).wait()), describe(5, IBV_WC_SUCCESS));
  EXPECT_EQ(*b(1).at(kBlock), 'l');
}

INSTANTIATE_TEST_SUITE_P(Transports, OrderOfCompletions, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });

}  // namespace
}  // namespace shadowib::ib2tcp::testing
