#include "hooks/job/recovery.h"

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

RecoveryPlan plan(std::vector<unsigned> back, const PerCluster& sns, const PerCluster& incarnations) {
  RecoveryPlan made;
  made.back = std::move(back);
  made.sns = sns;
  made.incarnations = incarnations;
  made.generation = 3;
  return made;
}

class RecoveryTest : public ::testing::Test {
 protected:
  RecoveryTest() {
    char name[] = "/tmp/shadowib-recovery-XXXXXX";
    top_ = ::mkdtemp(name);
    EXPECT_TRUE(Exchange::open("dir:" + top_ + "/x", true, &exchange_).ok());
  }
  ~RecoveryTest() override { std::filesystem::remove_all(top_); }
  void publish(const std::string& key, const Fields& fields) {
    ASSERT_TRUE(exchange_->publish(key, encode_fields(fields)).ok());
  }

  const std::string epoch_ = "g2-abc";
  std::string top_;
  std::unique_ptr<Exchange> exchange_;
};

TEST_F(RecoveryTest, PlansComeByNumberAndOneWithoutALineIsCounted) {
  std::vector<RecoveryPlan> plans;
  std::uint64_t latest = 7;
  ASSERT_TRUE(read_plans(*exchange_, epoch_, &plans, &latest).ok());
  EXPECT_TRUE(plans.empty());
  EXPECT_EQ(latest, 0u);
  publish(recovery_key(epoch_, 10, "line"), encode_plan(plan({1}, numbers({4, 2}), numbers({3, 5}))));
  publish(recovery_key(epoch_, 9, "line"), encode_plan(plan({0, 1}, numbers({4, 2}), numbers({3, 4}))));
  publish(recovery_key(epoch_, 9, "reached"), {});
  publish(recovery_key(epoch_, 11, "failed"), {{"clusters", "1"}});
  ASSERT_TRUE(read_plans(*exchange_, epoch_, &plans, &latest).ok());
  EXPECT_EQ(latest, 11u);
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0].number, 9u);
  EXPECT_TRUE(plans[0].reached);
  EXPECT_FALSE(plans[1].reached);
  EXPECT_FALSE(plans[1].goes_back(0));
  EXPECT_TRUE(plans[1].goes_back(1));
  EXPECT_EQ(plans[1].sns, numbers({4, 2}));
  EXPECT_EQ(plans[1].incarnations, numbers({3, 5}));
  EXPECT_EQ(generation_of(epoch_), 2u);
}

TEST_F(RecoveryTest, DamageIsNamed) {
  RecoveryPlan read;
  const Fields good = encode_plan(plan({1}, numbers({4, 2}), numbers({3, 5})));
  ASSERT_TRUE(decode_plan(good, &read).ok());
  const std::pair<const char*, const char*> damages[] = {{"sns", ""},        {"sns", "1,2,3"}, {"incarnations", "x"},
                                                         {"back", "2"},      {"back", "1,1"},  {"back", ""},
                                                         {"generation", "0"}};
  for (const auto& [field, value] : damages) {
    Fields damaged = good;
    damaged[field] = value;
    EXPECT_EQ(decode_plan(damaged, &read).code(), Code::kCorrupt) << field << "=" << value;
  }
  IncarnationWord word;
  ASSERT_TRUE(decode_word(encode_word({4, numbers({1, 2})}), &word).ok());
  EXPECT_EQ(word.n, 4u);
  EXPECT_EQ(word.incarnations, numbers({1, 2}));
  EXPECT_EQ(decode_word({{"n", "0"}, {"incarnations", "1"}}, &word).code(), Code::kCorrupt);
  EXPECT_EQ(decode_word({{"n", "1"}, {"incarnations", ""}}, &word).code(), Code::kCorrupt);
}

TEST_F(RecoveryTest, AClcBehindTheLineCountsNoMore) {
  const std::vector<RecoveryPlan> plans{plan({1}, numbers({4, 2}), numbers({3, 5}))};
  const auto undone = [&plans](unsigned cluster, federation::Sn sn, federation::Incarnation incarnation) {
    federation::ClcRecord record;
    record.cluster = cluster;
    record.sn = sn;
    record.incarnation = incarnation;
    return is_undone(plans, record);
  };
  EXPECT_TRUE(undone(1, 3, 4));
  EXPECT_FALSE(undone(1, 2, 4)) << "the cluster is at that one";
  EXPECT_FALSE(undone(1, 3, 5)) << "made since";
  EXPECT_FALSE(undone(0, 9, 1)) << "its cluster stayed";
}

TEST_F(RecoveryTest, WhoIsInMulticastGroupsIsWiredToAllWhoAre) {
  std::set<std::pair<unsigned, unsigned>> wired;
  publish(wired_key(epoch_, 2, 0), {});
  publish(wired_key(epoch_, 1, kManyClusters), {});
  ASSERT_TRUE(read_wired(*exchange_, epoch_, &wired).ok());
  EXPECT_EQ(wired, (std::set<std::pair<unsigned, unsigned>>{{0, 2}})) << "one alone reaches nobody";
  publish(wired_key(epoch_, 3, kManyClusters), {});
  publish(wired_key(epoch_, 0, kManyClusters), {});
  ASSERT_TRUE(read_wired(*exchange_, epoch_, &wired).ok());
  EXPECT_EQ(wired, (std::set<std::pair<unsigned, unsigned>>{{0, 1}, {0, 2}, {0, 3}, {1, 3}}));
}

}  // namespace
}  // namespace shadowib
