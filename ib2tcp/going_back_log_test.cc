// Clusters that go back to a checkpoint: the log of what is sent again, which is trimmed, full, or begun anew.
#include <cstring>

#include "ib2tcp/testing/two_clusters.h"

namespace shadowib::ib2tcp::testing {
namespace {

class LogOfRequests : public TwoClusters {};

// A peer that may ask for a result that was dropped cannot go back to before: its logs count from then.
TEST_P(LogOfRequests, AResultThatIsDroppedIsTold) {
  const auto add = [&](std::uint64_t id) {
    a().post_send(id, IBV_WR_ATOMIC_FETCH_AND_ADD, kResults, 8, reinterpret_cast<std::uint64_t>(b().at(kCounter)),
                  b().key());
    expect_sent(id);
  };
  add(0);
  const std::uint64_t since = b().ops().logged_since(0);
  for (std::uint64_t id = 1; id < 4096; ++id) add(id);
  EXPECT_EQ(b().ops().logged_since(0), since);
  add(4096);
  EXPECT_GT(b().ops().logged_since(0), since);
}

// A recovery may go to before a CLC of the other cluster unless something was trimmed for it.
TEST_P(LogOfRequests, ALogThatIsTrimmedSaysForWhichCheckpoint) {
  b().checkpoint();
  b().ops().clc_collected(b().member().state.sn);
  post_receive(0), send(), expect_received(0), expect_sent(0);
  EXPECT_EQ(a().member().facts().trimmed[1], 0u) << "there was nothing to trim";
  b().checkpoint();
  const std::uint32_t sn = b().member().state.sn;
  b().ops().clc_collected(sn);
  EXPECT_TRUE(eventually([&] { return a().member().facts().trimmed[1] == sn; }));
  EXPECT_EQ(b().member().facts().trimmed[0], 0u);
}

class FullLog : public TwoClusters {
 protected:
  FullLog() : TwoClusters(3 * (sizeof(BorderLogEntry) + kBlockBytes), 7) {}
  void write(std::uint64_t id) {
    a().post_send(id, IBV_WR_RDMA_WRITE, kBlock, kBlockBytes, reinterpret_cast<std::uint64_t>(b().at(kBlock)),
                  b().key());
  }
};

// What the peer has run when the log is begun anew, nobody needs after the peer's next CLC.
TEST_P(FullLog, IsBegunAnewWhereNobodyTrims) {
  for (std::uint64_t id = 0; id < 5; ++id) write(id);
  for (std::uint64_t id = 0; id < 5; ++id) expect_sent(id);
  EXPECT_NE(a().member().process.log().find("is begun anew"), std::string::npos);
  EXPECT_EQ(a().checkpoint().border.unlogged, 0u);
  const std::uint64_t since = a().ops().logged_since(1);
  EXPECT_GT(since, 0u);
  EXPECT_LT(since, kGateNothing);
  const Image image = b().checkpoint();
  std::memset(a().at(kBlock), 'n', kBlockBytes);
  write(5);
  expect_sent(5);
  EXPECT_EQ(a().ops().logged_since(1), since);
  go_back(1, image);
  std::memset(a().at(kBlock), 'x', kBlockBytes);  // the bytes of then come, or none
  EXPECT_TRUE(eventually([&] { return *b().at(kBlock + kBlockBytes - 1) == 'n'; }));
  EXPECT_EQ(a().state(), IBV_QPS_RTS);
}

// Five small requests leave, which B holds back for as long as it is told to. The log has room for three.
class HeldBack : public TwoClusters {
 protected:
  HeldBack() : TwoClusters(3 * (sizeof(BorderLogEntry) + 8), 7) {}
  void hold(bool holds) {
    b().member().state.depends[0] = holds ? 0 : 1000;
    b().member().tell();
  }
  void send_all() {
    hold(true);
    for (int i = 0; i < 5; ++i) send();
    EXPECT_TRUE(eventually([&] { return a().ops().logged_since(1) == kGateNothing; }));
  }
  void take_all() {
    hold(false);
    for (std::uint64_t i = 0; i < 5; ++i) {
      post_receive(i);
      expect_received(i);
      expect_sent(i);
    }
  }
};

TEST_P(HeldBack, TheLogIsNotWholeBeforeThePeerHasRunWhatWasDropped) {
  send_all();
  EXPECT_EQ(a().ops().logged_since(1), kGateNothing);
  take_all();
  EXPECT_LT(a().ops().logged_since(1), kGateNothing);
}

// In the image some requests are in the log, and those before are not.
TEST_P(HeldBack, ARestartGoesOnFromWhereTheLogWasBegunAnew) {
  send_all();
  Image sender = a().checkpoint(), receiver = b().checkpoint();
  EXPECT_EQ(sender.border.unlogged, 1u);
  sender.log.limit = 1 << 20;
  for (int round = 0; round < 2; ++round) {
    a().end();
    go_back(1, receiver, false);
    go_back(0, sender, false);
    std::copy(std::begin(incarnations_), std::end(incarnations_), b().member().state.incarnations);
    hold(true);
    EXPECT_TRUE(eventually([&] { return b().ops().held_stamps(nullptr, 0) > 0; }));  // they have left again
    sender = a().checkpoint();
  }
  take_all();
  EXPECT_LT(a().ops().logged_since(1), kGateNothing);
}

// Never wrong: what cannot be sent again is an error.
TEST_P(FullLog, ALogThatWasGivenUpIsAnErrorWhenItIsNeeded) {
  const Image image = b().checkpoint();
  for (std::uint64_t id = 0; id < 5; ++id) write(id);
  for (std::uint64_t id = 0; id < 5; ++id) expect_sent(id);
  go_back(1, image);
  EXPECT_TRUE(eventually([&] { return a().state() == IBV_QPS_ERR; }));
  EXPECT_NE(a().member().process.log().find("do not belong together"), std::string::npos);
}

// The log is full to the last request, and another one follows while those before it are still refused. It waits.
TEST_P(FullLog, IsNotGivenUpBeforeAllIsSentAgain) {
  const auto send_block = [&](std::uint64_t id) {
    std::memset(a().at(kBlock), static_cast<int>('a' + id), kBlockBytes);
    a().post_send(id, IBV_WR_SEND, kBlock, kBlockBytes);
  };
  const auto take_block = [&](std::uint64_t id) {
    b().post_receive(id, kBlock, kBlockBytes);
    EXPECT_EQ(describe(b().wait()), describe(id, IBV_WC_SUCCESS));
    EXPECT_EQ(*b().at(kBlock + kBlockBytes - 1), static_cast<char>('a' + id));
  };
  const Image image = b().checkpoint();
  for (std::uint64_t id = 0; id < 3; ++id) {
    send_block(id);
    take_block(id);
    expect_sent(id);
  }
  go_back(1, image);
  send_block(3);
  ::usleep(200'000);  // in which all that is sent again is refused
  EXPECT_EQ(a().member().process.log().find("is begun anew"), std::string::npos);
  for (std::uint64_t id = 0; id < 4; ++id) take_block(id);
  expect_sent(3);
}

// What B has logged for A, if A goes back with it; else what B sent behind its image is in no log.
TEST_P(LogOfRequests, TheLogIsAsWholeAsItWasForWhoGoesBackToo) {
  const Image image = b().checkpoint();
  const std::uint64_t since = b().ops().logged_since(0);
  ASSERT_NE(since, 0u);
  b().end();
  const auto logged_since = [&](bool too, std::size_t bytes, std::uint32_t version) {
    std::string identity = image.identity;
    std::memcpy(identity.data() + 4, &version, sizeof(version));
    Process process(exchange_, ProcessOptions{.transport = GetParam()});
    ClusterState state = state_of(1, 1);
    state.incarnations[0] = state.incarnations[1] = 2;
    EXPECT_EQ(process.ops().set_cluster(&state), 0);
    EXPECT_EQ(too ? process.ops().cluster_gone(0, 1) : 0, 0);
    EXPECT_EQ(process.ops().restore_identity(identity.data(), bytes), 0);
    return process.ops().logged_since(0);
  };
  const std::size_t all = image.identity.size(), first = all - 8 * kMaxBackendClusters;
  EXPECT_EQ(logged_since(true, all, 2), since);
  EXPECT_GT(logged_since(false, all, 2), since);
  EXPECT_GT(logged_since(true, first, 1), since) << "an image that does not tell";
}

// B comes back while it sends again to A, and what it sends may be in no log: nobody goes back to that time. When A
// goes back later, B sends again from its log, and A may go back to the same CLC another time.
TEST_P(LogOfRequests, TheLogOfWhoCameBackIsWholeWhenTheOtherGoesBackLater) {
  const Image image = b().checkpoint();
  b().end();
  Process process(exchange_, ProcessOptions{.transport = GetParam()});
  ClusterState state = state_of(1, 1);
  state.incarnations[1] = 2;
  const GateState unknown{0, 0, 0, 0}, some{100, 0, 0, 0}, none{kGateNothing, 0, 0, 0};
  const auto since = [&] { return process.ops().logged_since(0); };
  EXPECT_EQ(process.ops().set_cluster(&state), 0);
  EXPECT_EQ(process.ops().set_gate(0, &unknown), 0);
  EXPECT_EQ(process.ops().restore_identity(image.identity.data(), image.identity.size()), 0);
  const std::uint64_t came_back = since();
  EXPECT_EQ(process.ops().set_gate(0, &some), 0);
  EXPECT_EQ(process.ops().set_gate(0, &none), 0);
  const std::uint64_t whole = since();
  EXPECT_GT(whole, came_back);
  EXPECT_EQ(process.ops().set_gate(0, &unknown), 0);
  EXPECT_EQ(process.ops().cluster_gone(0, 1), 0);
  EXPECT_EQ(process.ops().set_gate(0, &some), 0);
  EXPECT_EQ(process.ops().set_gate(0, &none), 0);
  EXPECT_EQ(since(), whole);
}

INSTANTIATE_TEST_SUITE_P(Transports, LogOfRequests, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, FullLog, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, HeldBack, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });

}  // namespace
}  // namespace shadowib::ib2tcp::testing
