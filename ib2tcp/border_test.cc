// What waits at the border between clusters, for how long, and who is asked for a CLC.
#include <cerrno>
#include <cstring>

#include "ib2tcp/testing/member.h"

namespace shadowib::ib2tcp::testing {
namespace {

constexpr std::uint32_t kPolicyVector = 1, kPolicyIndex = 2;

// Two clusters, 0 and 1, of a process each. The one of cluster 1 takes messages of CLC 1 of the other one.
class Border : public ::testing::TestWithParam<std::string> {
 protected:
  Border() : Border(1, 1) {}
  Border(std::uint32_t sn_a, std::uint32_t sn_b) : exchange_(std::make_shared<FakeExchange>()) {
    a_ = std::make_unique<Member>(exchange_, GetParam(), state_of(0, sn_a));
    b_ = std::make_unique<Member>(exchange_, GetParam(), state_of(1, sn_b));
    a_->state.depends[1] = b_->state.depends[0] = 1;
    a_->tell();
    b_->tell();
  }
  Member& a() { return *a_; }
  Member& b() { return *b_; }

  std::shared_ptr<FakeExchange> exchange_;
  std::unique_ptr<Member> a_, b_;
};

class BorderBeforeFirst : public Border {
 protected:
  BorderBeforeFirst() : Border(0, 0) {}
};

// Longer than the retries of any queue pair here last.
void let_time_outs_pass() { ::usleep(1'200'000); }

TEST_P(Border, StatesAreCheckedAndZeroIsOne) {
  ClusterState bad = a().state;
  bad.index = kMaxBackendClusters;
  EXPECT_EQ(a().process.ops().set_cluster(&bad), EINVAL);
  bad = a().state;
  bad.index = 1;  // not who it is
  EXPECT_EQ(a().process.ops().set_cluster(&bad), EINVAL);
  bad = a().state;
  bad.policy = 4;
  EXPECT_EQ(a().process.ops().set_cluster(&bad), EINVAL);
  Member third(exchange_, GetParam(), state_of(2, 0));
  third.tell();
  EXPECT_TRUE(third.held().empty());
}

TEST_P(BorderBeforeFirst, NothingLeavesBeforeClcOne) {
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  EXPECT_TRUE(eventually([&] { return a().wants_clc(0, 1); }));
  let_time_outs_pass();
  EXPECT_EQ(x.poll(), 0);
  EXPECT_EQ(y.poll(), 0);
  EXPECT_TRUE(b().held().empty());
  EXPECT_EQ(b().figure("frames_refused"), 0);
  a().commit(1, 1, 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
}

TEST_P(Border, RequestsCarryTheNumberOfTheirPosting) {
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  for (std::uint64_t i : {1, 2, 3}) ASSERT_EQ(y.post_recv(i, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  // Posted before CLC 2, and leaves after it.
  a().freeze(true);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  a().commit(2, 1, 1);
  ASSERT_EQ(x.post_send(3, {x.sge(0, 100)}), 0);
  a().freeze(false);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
  ASSERT_TRUE(eventually([&] { return b().held().size() == 1; }));
  EXPECT_EQ(b().held()[0].cluster, 0u);
  EXPECT_EQ(b().held()[0].sn, 2u);
  EXPECT_TRUE(b().wants_clc(0, 2));
  EXPECT_EQ(y.poll(), 0);
  b().commit(2, 0, 2);
  EXPECT_WC(y.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_TRUE(b().held().empty());
}

// Nobody knows for a while whether a CLC counts, and the program goes on. What it posts then is in no image of it.
TEST_P(Border, WhatIsPostedBehindAnUndecidedClcHasItsNumberIfItCounts) {
  Endpoint x(*a().device), y(*b().device), newer(*a().device), newer_peer(*b().device);
  connect(x, y);
  for (std::uint64_t i : {1, 2, 3}) ASSERT_EQ(y.post_recv(i, {y.sge(0, 100)}), 0);
  a().freeze(true);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  a().process.ops().freeze_border(kBorderUndecided);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  connect(newer, newer_peer);
  ASSERT_EQ(newer_peer.post_recv(10, {newer_peer.sge(0, 100)}), 0);
  ASSERT_EQ(newer.post_send(10, {newer.sge(0, 100)}), 0);
  a().commit(2, 1, 1);
  a().freeze(false);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  ASSERT_TRUE(eventually([&] { return b().held().size() == 1; }));
  EXPECT_EQ(b().held()[0].sn, 2u);
  EXPECT_EQ(y.poll(), 0);
  EXPECT_EQ(newer_peer.poll(), 0);
  b().commit(2, 0, 2);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(newer_peer.wait(), 10, IBV_WC_SUCCESS);
  // One that does not count.
  a().freeze(true);
  a().process.ops().freeze_border(kBorderUndecided);
  ASSERT_EQ(x.post_send(3, {x.sge(0, 100)}), 0);
  a().freeze(false);
  EXPECT_WC(y.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_TRUE(b().held().empty());
}

TEST_P(Border, AHeldMessageStopsItsLinkAndNoOther) {
  Endpoint x(*a().device), y(*b().device), behind(*a().device), behind_peer(*b().device);
  connect(x, y);
  connect(behind, behind_peer);
  Member fellow(exchange_, GetParam(), b().state);
  Endpoint near(*fellow.device), near_peer(*b().device);
  connect(near, near_peer);
  a().commit(2, 1, 1);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  ASSERT_EQ(behind.post_send(2, {behind.sge(0, 100)}), 0);
  ASSERT_EQ(behind_peer.post_recv(2, {behind_peer.sge(0, 100)}), 0);
  ASSERT_TRUE(eventually([&] { return b().held().size() == 1; }));
  for (std::uint64_t i = 10; i < 14; ++i) {
    ASSERT_EQ(near_peer.post_recv(i, {near_peer.sge(0, 1 << 20)}), 0);
    ASSERT_EQ(near.post_send(i, {near.sge(0, 1 << 20)}), 0);
    EXPECT_WC(near_peer.wait(), i, IBV_WC_SUCCESS);
    EXPECT_WC(near.wait(), i, IBV_WC_SUCCESS);
  }
  let_time_outs_pass();
  EXPECT_EQ(x.poll(), 0);  // no time-out
  EXPECT_EQ(behind_peer.poll(), 0);
  // Without a receive: that is looked at when the message is delivered, not before.
  EXPECT_EQ(b().figure("rnr_naks"), 0);
  b().commit(2, 0, 2);
  EXPECT_WC(behind_peer.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_TRUE(eventually([&] { return b().figure("rnr_naks") > 0; }));
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
}

TEST_P(Border, AHeldLinkLetsTheHelperSleep) {
  Endpoint x(*a().device, {}, 64 << 20), y(*b().device, {}, 64 << 20);
  connect(x, y);
  a().commit(2, 1, 1);
  b().commit(2, 0, 1);
  // Both wait for each other, with more to send than fits.
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, 32 << 20)}, y.address(32 << 20), y.mr->rkey), 0);
  ASSERT_EQ(y.post_rdma(1, IBV_WR_RDMA_WRITE, {y.sge(0, 32 << 20)}, x.address(32 << 20), x.mr->rkey), 0);
  ASSERT_TRUE(eventually([&] { return a().held().size() == 1 && b().held().size() == 1; }));
  ::usleep(300'000);
  const long turns_a = a().figure("helper_turns"), turns_b = b().figure("helper_turns");
  ::usleep(500'000);
  EXPECT_LT(a().figure("helper_turns") - turns_a, 40);
  EXPECT_LT(b().figure("helper_turns") - turns_b, 40);
  a().commit(3, 1, 2);
  b().commit(3, 0, 2);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
}

// A READ changes nothing at its target, so that it is not judged there; its data is, at home.
TEST_P(Border, OfAReadTheAnswerIsAMessage) {
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  a().commit(5, 1, 1);
  b().commit(2, 0, 1);
  std::memset(y.at(0), 'r', 100);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_READ, {x.sge(0, 100)}, y.address(0), y.mr->rkey), 0);
  ASSERT_TRUE(eventually([&] { return a().held().size() == 1; }));
  EXPECT_TRUE(b().held().empty());
  EXPECT_EQ(a().held()[0].cluster, 1u);
  EXPECT_EQ(a().held()[0].sn, 2u);
  EXPECT_EQ(*x.at(0), 0);
  a().commit(6, 1, 2);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(*x.at(99), 'r');
}

TEST_P(BorderBeforeFirst, AnAnswerWaitsForClcOneToo) {
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  a().commit(1, 1, 1);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_READ, {x.sge(0, 100)}, y.address(0), y.mr->rkey), 0);
  EXPECT_TRUE(eventually([&] { return b().wants_clc(1, 1); }));
  let_time_outs_pass();
  EXPECT_EQ(x.poll(), 0);
  b().commit(1, 0, 1);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
}

TEST_P(Border, TheResultOfAnAtomicIsAMessage) {
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  std::memset(y.at(0), 0, 8);
  ASSERT_EQ(x.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(0, 8)}, y.address(0), y.mr->rkey, 7, 0), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  b().commit(2, 0, 1);
  ASSERT_EQ(x.post_atomic(2, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(8, 8)}, y.address(0), y.mr->rkey, 7, 0), 0);
  ASSERT_TRUE(eventually([&] { return a().held().size() == 1; }));
  EXPECT_EQ(a().held()[0].sn, 2u);
  a().commit(2, 1, 2);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(*reinterpret_cast<std::uint64_t*>(x.at(8)), 7u);
}

TEST_P(Border, ADependencyOfTheSenderHoldsUnderPolicyVector) {
  for (Member* member : {&a(), &b()}) {
    member->state.policy = kPolicyVector;
    member->tell();
  }
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  // A depends on cluster 2, of which B has heard nothing.
  a().state.depends[2] = 4;
  a().commit(2, 1, 1);
  b().commit(2, 0, 2);
  ASSERT_EQ(y.post_recv(2, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  ASSERT_TRUE(eventually([&] { return b().held().size() == 1; }));
  EXPECT_EQ(b().held()[0].vector[0], 2u);
  EXPECT_EQ(b().held()[0].vector[2], 4u);
  b().state.depends[2] = 4;
  b().commit(3, 0, 2);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
}

// Nobody but the backend knows: the agents' D does not tell who may be delivered.
TEST_P(Border, WhatHasBeenDeliveredIsKnownUnderPolicyIndex) {
  for (Member* member : {&a(), &b()}) {
    member->state.policy = kPolicyIndex;
    member->commit(5, 1 - member->state.index, 0);
  }
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  EXPECT_EQ(b().facts().delivered[0], 0u);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_READ, {x.sge(0, 8)}, y.address(0), y.mr->rkey), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(b().facts().delivered[0], 0u) << "a READ is no message to who is read from";
  EXPECT_EQ(a().facts().delivered[1], 5u) << "its answer is one";
  // It is let in, and there is no receive: it was not delivered.
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  ASSERT_TRUE(eventually([&] { return b().figure("rnr_naks") > 0; }));
  EXPECT_EQ(b().facts().delivered[0], 0u);
  ASSERT_EQ(y.post_recv(2, {y.sge(0, 100)}), 0);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(b().facts().delivered[0], 5u);
  // A later CLC of B's alone changes nothing of it, nor does an earlier state of the agent's.
  b().commit(7, 0, 0);
  EXPECT_EQ(b().facts().delivered[0], 5u);
  a().commit(6, 1, 0);
  ASSERT_EQ(x.post_atomic(3, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(8, 8)}, y.address(0), y.mr->rkey, 7, 0), 0);
  ASSERT_TRUE(eventually([&] { return a().held().size() == 1; })) << "the answer is from behind CLC 7";
  EXPECT_EQ(b().facts().delivered[0], 6u);
  EXPECT_EQ(a().facts().delivered[1], 5u) << "it is held";
  a().commit(7, 1, 0);
  EXPECT_WC(x.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_EQ(a().facts().delivered[1], 7u);
}

// Each message once, where it happens, under the SN of then.
TEST_P(Border, MessagesAreTraced) {
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  // Posted before CLC 2, which they leave behind: what is asked for then traces them under 1.
  a().freeze(true);
  ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_READ, {x.sge(0, 8)}, y.address(0), y.mr->rkey), 0);
  ASSERT_EQ(x.post_atomic(3, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(8, 8)}, y.address(0), y.mr->rkey, 7, 0), 0);
  (void)a().facts();
  a().commit(2, 1, 1);
  a().freeze(false);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 3, IBV_WC_SUCCESS);
  ASSERT_EQ(y.post_recv(4, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(4, {x.sge(0, 100)}), 0);
  ASSERT_TRUE(eventually([&] { return b().held().size() == 1; }));
  b().commit(2, 0, 2);
  EXPECT_WC(y.wait(), 4, IBV_WC_SUCCESS);
  using Kind = BorderEvent::Kind;
  struct Expected {
    Kind kind;
    std::uint32_t number;  // from the first request of x's on
    std::uint32_t sn;
  };
  // Each kind in order. A turn of the helper may read two requests before it answers the first one.
  const auto traced = [](Member& member) {
    std::vector<BorderEvent> events = member.traced();
    std::stable_sort(events.begin(), events.end(), [](const auto& i, const auto& j) { return i.kind < j.kind; });
    return events;
  };
  const std::vector<BorderEvent> of_a = traced(a()), of_b = traced(b());
  const auto expect = [&](const std::vector<BorderEvent>& events, const std::vector<Expected>& expected) {
    ASSERT_EQ(events.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE("event " + std::to_string(i));
      EXPECT_EQ(events[i].kind, expected[i].kind);
      EXPECT_EQ(events[i].number, of_a[0].number + expected[i].number);
      EXPECT_EQ(events[i].sn, expected[i].sn);
    }
  };
  // A posts a SEND, an atomic and a SEND, and has the answers to a READ and to the atomic.
  expect(of_a, {{Kind::kPost, 0, 1},
                {Kind::kPost, 2, 1},
                {Kind::kPost, 3, 2},
                {Kind::kDeliver, 1, 2},
                {Kind::kDeliver, 2, 2}});
  expect(of_b, {{Kind::kPost, 1, 1},
                {Kind::kPost, 2, 1},
                {Kind::kHold, 3, 1},
                {Kind::kDeliver, 0, 1},
                {Kind::kDeliver, 2, 1},
                {Kind::kDeliver, 3, 2}});
  if (HasFailure()) return;
  EXPECT_EQ(of_a[0].flow, of_b[3].flow) << "both ends name a flow alike";
  EXPECT_EQ(of_a[0].flow, of_b[2].flow);
  EXPECT_EQ(of_a[3].flow, of_b[0].flow);
  EXPECT_EQ(of_a[4].flow, of_b[1].flow);
  EXPECT_NE(of_a[0].flow, of_a[3].flow);
  EXPECT_NE(of_a[3].flow, of_a[4].flow) << "answers to READs and to atomics may carry SNs in another order";
}

// Within an interval, under one SN.
TEST_P(Border, ANewDependencyIsToldUnderPolicyVector) {
  for (Member* member : {&a(), &b()}) {
    member->state.policy = kPolicyVector;
    member->tell();
  }
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  for (std::uint64_t i : {1, 2}) ASSERT_EQ(y.post_recv(i, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  a().state.depends[2] = 4;
  a().tell();
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  ASSERT_TRUE(eventually([&] { return b().held().size() == 1; }));
  EXPECT_EQ(b().held()[0].vector[2], 4u);
  b().state.depends[2] = 4;
  b().commit(2, 0, 1);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
}

// Its queue pair is gone before CLC 1, which it waited for.
TEST_P(BorderBeforeFirst, ARefusalOutlivesItsQueuePair) {
  for (std::uint32_t policy : {0u, kPolicyVector}) {
    SCOPED_TRACE("policy " + std::to_string(policy));
    for (Member* member : {&a(), &b()}) member->state.policy = policy;
    a().commit(1, 1, 1);
    b().commit(0, 0, 1);
    Endpoint x(*a().device), y(*b().device);
    connect(x, y);
    ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, 8)}, y.address(0), y.mr->rkey + 1), 0);
    ASSERT_TRUE(eventually([&] { return y.state() == IBV_QPS_ERR; }));
    ASSERT_EQ(y.ops.destroy_qp(y.qp), 0);
    y.qp = nullptr;
    b().commit(1, 0, 1);
    EXPECT_WC(x.wait(), 1, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(a().figure("frames_refused"), 0);
  }
}

TEST_P(Border, NoDescriptorsHereAreNoAbsentPeer) {
  Endpoint x(*a().device), y(*b().device);
  a().process.descriptors_short_ = b().process.descriptors_short_ = true;
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  let_time_outs_pass();
  EXPECT_EQ(x.poll(), 0);
  a().process.descriptors_short_ = b().process.descriptors_short_ = false;
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
}

TEST_P(Border, IdleQueuePairsLeaveAPeerThatIsGoneAlone) {
  Endpoint x(*a().device), y(*b().device);
  y.abandoned = true;
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  b().process.kill();
  ASSERT_TRUE(eventually([&] { return a().figure("links_lost") == 1; }));
  ::usleep(1'500'000);
  const std::string log = a().process.log();
  int attempts = 0;
  for (std::size_t at = 0; (at = log.find("no connection to", at)) != std::string::npos; ++at) ++attempts;
  EXPECT_LE(attempts, 2);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  EXPECT_WC(x.wait(), 2, IBV_WC_RETRY_EXC_ERR);
}

TEST(BorderOverFabric, AProviderWithoutConnectionsIsRefused) {
  auto exchange = std::make_shared<FakeExchange>();
  for (const char* transport : {"ofi:tcp", "ofi:tcp;ofi_rxm"}) {
    ProcessOptions options;
    options.transport = transport;
    Process process(exchange, options);
    const ClusterState state = state_of(0, 1);
    ASSERT_EQ(process.ops().set_cluster(&state), 0);
    int count = 0;
    ibv_device** list = process.ops().get_device_list(&count);
    ASSERT_NE(list, nullptr);
    const bool has_connections = std::string(transport) == "ofi:tcp";
    EXPECT_EQ(process.ops().open_device(list[0]) != nullptr, has_connections) << transport;
    if (has_connections) continue;
    EXPECT_EQ(process.last_errno(), EINVAL);
    EXPECT_NE(process.log().find("has no connections"), std::string::npos);
  }
}

TEST_P(Border, DatagramsAreJudgedToo) {
  QpOptions options;
  options.type = IBV_QPT_UD;
  Endpoint x(*a().device, options), y(*b().device, options);
  for (Endpoint* side : {&x, &y}) {
    ASSERT_EQ(side->to_init(side->qp), 0);
    ASSERT_EQ(side->to_rtr(side->qp, side->device, 0), 0);
    ASSERT_EQ(side->to_rts(side->qp), 0);
  }
  ibv_ah* ah = x.make_ah(*b().device);
  for (std::uint64_t i : {1, 2}) ASSERT_EQ(y.post_recv(i, {y.sge(0, 200)}), 0);
  ASSERT_EQ(x.post_datagram(1, {x.sge(0, 100)}, ah, y.qp->qp_num, y.options.qkey), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  a().commit(2, 1, 1);
  ASSERT_EQ(x.post_datagram(2, {x.sge(0, 100)}, ah, y.qp->qp_num, y.options.qkey), 0);
  ASSERT_TRUE(eventually([&] { return b().held().size() == 1; }));
  EXPECT_EQ(y.poll(), 0);
  b().commit(2, 0, 2);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(x.ops.destroy_ah(ah), 0);
}

TEST_P(Border, NothingOfADeadIncarnationIsDelivered) {
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  a().commit(2, 1, 1);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  ASSERT_TRUE(eventually([&] { return b().held().size() == 1; }));
  // Cluster 0 has gone back. What is held is dropped, and A is not let in again.
  b().state.incarnations[0] = 1;
  b().commit(2, 0, 2);
  EXPECT_TRUE(b().held().empty());
  EXPECT_TRUE(eventually([&] { return a().process.log().find("is over") != std::string::npos; }));
  let_time_outs_pass();
  EXPECT_EQ(y.poll(), 0);
  EXPECT_EQ(x.poll(), 0);  // it waits: somebody will end it, or tell it
  EXPECT_EQ(y.state(), IBV_QPS_RTS);
}

TEST_P(Border, QueuePairsToAClusterThatIsGoneWait) {
  Endpoint x(*a().device), y(*b().device);
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  a().commit(2, 1, 1);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 100)}), 0);
  ASSERT_TRUE(eventually([&] { return b().held().size() == 1; }));
  const BackendOps& ops = b().process.ops();
  EXPECT_EQ(ops.cluster_gone(1, 0), EINVAL);  // its own
  EXPECT_EQ(ops.cluster_gone(kMaxBackendClusters, 0), EINVAL);
  EXPECT_EQ(ops.cluster_gone(0, 0), 0);
  EXPECT_TRUE(b().held().empty());
  b().commit(2, 0, 2);  // which names the old incarnation, and brings nothing back
  ASSERT_EQ(y.post_recv(2, {y.sge(0, 100)}), 0);
  ASSERT_EQ(y.post_send(3, {y.sge(0, 100)}), 0);
  let_time_outs_pass();
  EXPECT_EQ(y.poll(), 0);
  EXPECT_EQ(y.state(), IBV_QPS_RTS);
}

TEST_P(Border, AProcessOfNoClusterIsNotLetIn) {
  ProcessOptions options;
  options.transport = GetParam();
  Process outsider(exchange_, options);
  Device device(outsider);
  QpOptions impatient;
  impatient.timeout = 1;
  impatient.retry_cnt = 1;
  Endpoint x(device, impatient), y(*b().device);
  connect(x, y);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_TRUE(eventually([&] { return b().process.log().find("in no cluster") != std::string::npos; }));
  EXPECT_EQ(y.state(), IBV_QPS_RTS);
}

INSTANTIATE_TEST_SUITE_P(Transports, Border, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });
INSTANTIATE_TEST_SUITE_P(Transports, BorderBeforeFirst, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return name_in_test(info.param); });

}  // namespace
}  // namespace shadowib::ib2tcp::testing
