#include "hooks/command/federation_view.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace shadowib {
namespace {

using federation::PerCluster;

PerCluster numbers(std::initializer_list<std::uint32_t> list) {
  PerCluster result;
  for (std::uint32_t n : list) result[result.clusters++] = n;
  return result;
}

class FederationViewTest : public ::testing::Test {
 protected:
  FederationViewTest() {
    char name[] = "/tmp/shadowib-view-XXXXXX";
    top_ = ::mkdtemp(name);
    view_.directory = top_;
    view_.job = "demo";
    view_.epoch = "g0-1";
    EXPECT_TRUE(Exchange::open("dir:" + top_ + "/x", true, &view_.exchange).ok());
  }
  ~FederationViewTest() override { std::filesystem::remove_all(top_); }

  void publish(const std::string& key, const Fields& fields) {
    ASSERT_TRUE(view_.exchange->publish(key, encode_fields(fields)).ok());
  }
  void make_clusters(const std::string& policy) {
    publish(federation_key(view_.epoch), {{"policy", policy}});
    publish(cluster_key(view_.epoch, "B"), {{"index", "1"}});
    publish(cluster_key(view_.epoch, "A"), {{"index", "0"}});
  }
  static Decision committed(unsigned cluster, federation::Sn sn, const PerCluster& before, const PerCluster& after) {
    Decision decision;
    decision.record = {cluster, sn, 1, before, after};
    decision.record.claim = federation::ClcRecord::Claim::kCommitted;
    decision.set = "demo.x.0001";
    decision.set_id = "0";
    decision.by = "command";
    return decision;
  }
  Decision decide_for(std::uint64_t attempt, const Decision& mine) {
    Decision decided;
    EXPECT_TRUE(decide(*view_.exchange, view_.epoch, attempt, mine, &decided).ok());
    return decided;
  }

  std::string top_;
  JobView view_;
};

TEST_F(FederationViewTest, AJobWithoutClustersHasNone) {
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  EXPECT_FALSE(federation.exists());
  EXPECT_EQ(no_such_cluster(federation, "demo", "B").code(), Code::kNotFound);
}

TEST_F(FederationViewTest, ClustersComeByIndexAndAGapIsCorrupt) {
  make_clusters("vector");
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  EXPECT_EQ(federation.policy, "vector");
  EXPECT_EQ(federation.names(), (std::vector<std::string>{"A", "B"}));
  publish(cluster_key(view_.epoch, "C"), {{"index", "3"}});
  EXPECT_EQ(read_federation(view_, &federation).code(), Code::kCorrupt);
}

TEST_F(FederationViewTest, TheFirstDecisionCountsAndALaterAttemptIsAnother) {
  make_clusters("paper");
  Decision none;
  none.record = {1, 1, 1, PerCluster(), PerCluster()};
  none.record.claim = federation::ClcRecord::Claim::kVoid;
  none.by = "member 2";
  const Decision mine = committed(1, 1, numbers({0, 0}), numbers({1, 0}));
  EXPECT_EQ(decide_for(1, none).by, "member 2");
  EXPECT_EQ(decide_for(1, mine).record.claim, federation::ClcRecord::Claim::kVoid) << "the command has come too late";
  EXPECT_EQ(decide_for(2, mine).by, "command");
  EXPECT_EQ(decide_for(2, none).record, mine.record) << "the member obeys";
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  ASSERT_EQ(federation.clusters[1].clcs.size(), 1u);
  EXPECT_EQ(federation.clusters[1].voids.size(), 1u);
  EXPECT_FALSE(federation.clusters[1].clcs[0].kept) << "there is no such set";
  EXPECT_EQ(sns_of(federation), numbers({0, 1}));
  EXPECT_TRUE(histories_of(federation)[1].kept.empty());
}

TEST_F(FederationViewTest, DIsBoundedByWhatCanHaveBeenSent) {
  make_clusters("paper");
  decide_for(1, committed(0, 3, numbers({0, 0}), numbers({0, 0})));
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  federation::RunningCluster b;
  b.index = 1;
  b.sn = 2;
  b.depends = numbers({1, 0});
  EXPECT_EQ(bounded(federation, b), numbers({1, 0}));
  b.depends = numbers({9, 9});
  EXPECT_EQ(bounded(federation, b), numbers({3, 0})) << "what a cluster has of itself is no dependency";
  // Under `index`, too, members tell what they have delivered, which may be less than their own SN.
  federation.policy = "index";
  b.depends = numbers({1, 0});
  b.sn = 7;
  EXPECT_EQ(bounded(federation, b), numbers({1, 0}));
}

// Under `vector` D has entries of clusters that it has never talked to. Else the next message would force a CLC for
// them again.
TEST_F(FederationViewTest, DHasClustersThatItWasNeverWiredTo) {
  make_clusters("vector");
  decide_for(1, committed(0, 3, numbers({0, 0}), numbers({0, 0})));
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  federation.tells_wiring = true;
  federation::RunningCluster b;
  b.index = 1;
  b.depends = numbers({2, 0});
  ASSERT_FALSE(federation.are_wired(0, 1));
  EXPECT_EQ(bounded(federation, b), numbers({2, 0}));
}

// A member that has ended has left what it had delivered in its cluster.
TEST_F(FederationViewTest, DHasWhatMembersThatEndedHadDelivered) {
  make_clusters("index");
  decide_for(1, committed(0, 3, numbers({0, 0}), numbers({0, 0})));
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  std::vector<MemberStatus> members(2);
  for (MemberStatus& member : members) member.cluster = "B";
  members[0].alive = members[0].answered = true;
  members[0].json = R"({"cluster":{"sn":3,"incarnation":1,"depends":[1,0]}})";
  members[1].index = 1;
  members[1].gone = true;
  members[1].left_depends = numbers({2, 0});
  add_answers(members, &federation);
  ASSERT_TRUE(federation.clusters[1].running);
  EXPECT_EQ(federation.clusters[1].running->depends, numbers({2, 0}));
}

TEST_F(FederationViewTest, DIsTheGreatestOfMembersAndASilentOneHasFailed) {
  make_clusters("paper");
  decide_for(1, committed(0, 3, numbers({0, 0}), numbers({0, 0})));
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  std::vector<MemberStatus> members(2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    members[i].index = i;
    members[i].cluster = "B";
    members[i].alive = members[i].answered = true;
    members[i].json = R"({"cluster":{"sn":1,"incarnation":1,"depends":[)" + std::to_string(i + 1) + R"(,0]}})";
  }
  FederationView answered = federation;
  add_answers(members, &answered);
  ASSERT_TRUE(answered.clusters[1].running);
  EXPECT_EQ(answered.clusters[1].running->depends, numbers({2, 0}));
  EXPECT_FALSE(answered.clusters[0].running) << "it has no members";
  members[1].answered = false;
  answered = federation;
  add_answers(members, &answered);
  EXPECT_FALSE(answered.clusters[1].running);
  members[1].gone = true;  // in an orderly way: the others are the cluster
  answered = federation;
  add_answers(members, &answered);
  EXPECT_TRUE(answered.clusters[1].running);
}

RecoveryPlan back_to(std::vector<unsigned> back, const PerCluster& sns, const PerCluster& incarnations) {
  RecoveryPlan plan;
  plan.back = std::move(back);
  plan.sns = sns;
  plan.incarnations = incarnations;
  plan.generation = 1;
  return plan;
}

TEST_F(FederationViewTest, ALineThatIsNotReachedBindsAndWhatIsBehindItIsUndone) {
  make_clusters("paper");
  for (federation::Sn sn = 1; sn <= 3; ++sn) decide_for(sn, committed(1, sn, numbers({0, 0}), numbers({0, 0})));
  publish(recovery_key(view_.epoch, 4, "line"), encode_plan(back_to({1}, numbers({0, 2}), numbers({1, 2}))));
  publish(incarnations_key(view_.epoch), encode_word({1, numbers({1, 2})}));
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  ASSERT_EQ(federation.clusters[1].clcs.size(), 2u);
  EXPECT_EQ(federation.clusters[1].clcs.back().decision.record.sn, 2u);
  ASSERT_EQ(federation.clusters[1].undone.size(), 1u);
  EXPECT_EQ(incarnations_of(federation)[1], 2u) << "as members were told";
  ASSERT_NE(federation.unreached(), nullptr);
  EXPECT_FALSE(histories_of(federation)[0].bound);
  ASSERT_TRUE(histories_of(federation)[1].bound);
  EXPECT_EQ(*histories_of(federation)[1].bound, 2u);
  publish(recovery_key(view_.epoch, 4, "reached"), {});
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  EXPECT_EQ(federation.unreached(), nullptr);
  EXPECT_FALSE(histories_of(federation)[1].bound);
  // CLC 3 of the next incarnation is another one.
  Decision again = committed(1, 3, numbers({0, 0}), numbers({0, 0}));
  again.record.incarnation = 2;
  decide_for(9, again);
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  ASSERT_EQ(federation.clusters[1].clcs.size(), 3u);
  EXPECT_EQ(federation.clusters[1].clcs.back().decision.record.incarnation, 2u);
}

TEST_F(FederationViewTest, WhoWasNeverWired) {
  make_clusters("index");
  decide_for(1, committed(0, 3, numbers({0, 0}), numbers({0, 0})));
  std::vector<MemberStatus> members(2);
  for (std::uint32_t i = 0; i < 2; ++i) {
    members[i].index = i;
    members[i].cluster = i == 0 ? "A" : "B";
    members[i].cluster_index = i;
    members[i].meets = kFirstTellsWiring;
    members[i].alive = members[i].answered = true;
    members[i].json = R"({"cluster":{"sn":3,"incarnation":1,"depends":[0,0]}})";
  }
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  EXPECT_TRUE(federation.are_wired(0, 1)) << "nobody has told";
  add_answers(members, &federation);
  EXPECT_FALSE(federation.are_wired(0, 1));
  publish(wired_key(view_.epoch, 1, 0), {});
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  add_answers(members, &federation);
  EXPECT_TRUE(federation.are_wired(1, 0));
  EXPECT_EQ(federation.clusters[1].running->depends, numbers({0, 0})) << "it has delivered nothing";
  members[0].meets = kFirstTellsWiring - 1;  // a library that tells nothing
  ASSERT_TRUE(view_.exchange->remove(wired_key(view_.epoch, 1, 0)).ok());
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  add_answers(members, &federation);
  EXPECT_TRUE(federation.are_wired(1, 0));
}

TEST_F(FederationViewTest, TheLargestLogOfItsMembersIsToldOfACluster) {
  make_clusters("paper");
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  std::vector<MemberStatus> members(3);
  const char* const logs[] = {R"(,"log_bytes":1048576)", R"(,"log_bytes":65536)", ""};  // an older library tells none
  for (std::uint32_t i = 0; i < 3; ++i) {
    members[i].index = i;
    members[i].cluster = "A";
    members[i].alive = members[i].answered = true;
    members[i].json = std::string(R"({"cluster":{"sn":0,"incarnation":1,"depends":[0,0])") + logs[i] + "}}";
  }
  add_answers(members, &federation);
  EXPECT_EQ(federation.clusters[0].log_bytes, 1048576u);
  EXPECT_EQ(federation.clusters[1].log_bytes, 0u);
}

TEST_F(FederationViewTest, AClusterThatHasEndedStaysUnlessItWasWired) {
  make_clusters("paper");
  decide_for(1, committed(1, 3, numbers({0, 0}), numbers({0, 0})));
  std::vector<MemberStatus> members(1);
  members[0].cluster = "B";
  members[0].cluster_index = 1;
  members[0].meets = kFirstTellsWiring;
  members[0].gone = true;
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  add_answers(members, &federation);
  ASSERT_TRUE(federation.clusters[1].running);
  EXPECT_EQ(federation.clusters[1].running->sn, 3u);
  publish(wired_key(view_.epoch, 0, 1), {});
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  add_answers(members, &federation);
  EXPECT_FALSE(federation.clusters[1].running) << "nobody knows what it has had";
}

TEST_F(FederationViewTest, AClusterThatHasEndedBeforeItsFirstClcIsInNobodysWay) {
  make_clusters("index");
  decide_for(1, committed(0, 3, numbers({0, 0}), numbers({0, 0})));
  FederationView federation;
  ASSERT_TRUE(read_federation(view_, &federation).ok());
  std::vector<MemberStatus> members(2);
  members[0].cluster = "A";
  members[0].alive = members[0].answered = true;
  members[0].json = R"({"cluster":{"sn":3,"incarnation":2,"depends":[0,0]}})";
  members[1].index = 1;
  members[1].cluster = "B";
  members[1].gone = true;
  FederationView answered = federation;
  add_answers(members, &answered);
  ASSERT_TRUE(answered.clusters[1].running);
  EXPECT_EQ(answered.clusters[1].running->sn, 0u);
  EXPECT_EQ(answered.clusters[1].running->depends, numbers({0, 0}));
  EXPECT_EQ(answered.clusters[1].running->incarnations, numbers({2, 2}));
  members[1].gone = false;  // it has died
  answered = federation;
  add_answers(members, &answered);
  EXPECT_FALSE(answered.clusters[1].running);
}

TEST(Possible, NobodyIsHeldByAnSnThatHisClusterDoesNotHave) {
  FederationView federation;
  federation.clusters.resize(3);
  for (unsigned i = 0; i < 3; ++i) federation.clusters[i].index = i;
  federation.clusters[0].clcs.resize(1);
  federation.clusters[0].clcs[0].decision.record.sn = 3;
  const auto stamp = [](unsigned cluster, federation::Sn sn) {
    federation::Stamp made;
    made.cluster = cluster;
    made.sn = sn;
    made.vector = PerCluster(federation::kMaxClusters);
    return made;
  };
  federation::Stamp lies = stamp(0, 3);
  lies.vector[1] = 0xffffffff;
  const std::vector<federation::Stamp> held = possible(
      federation, {stamp(0, 3), stamp(0, 4), stamp(0, 0xffffffff), stamp(1, 1), stamp(2, 2), stamp(7, 1), lies});
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[0].sn, 3u);
  EXPECT_EQ(held[1].cluster, 1u);
}

}  // namespace
}  // namespace shadowib
