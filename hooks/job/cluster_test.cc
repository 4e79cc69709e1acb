#include "hooks/job/cluster.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

using federation::PerCluster;

PerCluster numbers(std::initializer_list<std::uint32_t> list) {
  PerCluster result;
  for (std::uint32_t n : list) result[result.clusters++] = n;
  return result;
}

TEST(ClusterName, HasNoDotAndNoSlash) {
  for (const char* good : {"A", "east-1", "0_b", "abcdefghijklmnopqrstuvwxyz012345"})
    EXPECT_TRUE(valid_cluster_name(good)) << good;
  for (const char* wrong : {"", "-a", "a.b", "a/b", "a b", "\xc3\xa4", "abcdefghijklmnopqrstuvwxyz0123456"})
    EXPECT_FALSE(valid_cluster_name(wrong)) << wrong;
}

TEST(ClusterKeys, AreValidAndApart) {
  EXPECT_EQ(set_owner("demo", "B"), "demo.B");
  EXPECT_EQ(set_owner("demo", ""), "demo");
  EXPECT_EQ(checkpoint_key_of("g0-1", checkpoint_id(kWholeJob, 7), "go"), checkpoint_key("g0-1", 7, "go"));
  EXPECT_EQ(checkpoint_key_of("g0-1", checkpoint_id(1, 7), "go"), "g0-1/ckpt/1.7/go");
  EXPECT_EQ(request_name(kWholeJob), "checkpoint");
  EXPECT_EQ(request_name(1), "checkpoint.1");
  EXPECT_EQ(clc_key("g0-1", 1, clc_name(2, 3, 4)), "g0-1/clc/1/2.3.4");
  EXPECT_EQ(turn_lock(3), "ckpt3.turn");
}

TEST(ClusterPolicy, NoneIsNoJobs) {
  federation::Policy policy{};
  for (const char* name : {"paper", "vector", "index"}) {
    ASSERT_TRUE(parse_policy(name, &policy));
    EXPECT_STREQ(policy_name(policy), name);
  }
  EXPECT_FALSE(parse_policy("none", &policy));
  EXPECT_FALSE(parse_policy("", &policy));
}

TEST(ClusterNumbers, OneForEachCluster) {
  PerCluster read;
  ASSERT_TRUE(decode_numbers("3,0,4294967295", &read));
  EXPECT_EQ(read, numbers({3, 0, 4294967295u}));
  EXPECT_EQ(encode_numbers(read), "3,0,4294967295");
  for (const char* wrong : {"", ",", "1,", ",1", "1,,2", "x", "1 2", "4294967296", "-1"})
    EXPECT_FALSE(decode_numbers(wrong, &read)) << wrong;
  std::string many = "1";
  for (unsigned i = 1; i < federation::kMaxClusters; ++i) many += ",1";
  EXPECT_TRUE(decode_numbers(many, &read));
  EXPECT_FALSE(decode_numbers(many + ",1", &read));
}

TEST(ClusterBorder, ComesBackAsItWas) {
  BorderReport report;
  report.running = {.index = 1, .sn = 4, .depends = numbers({2, 0}), .incarnations = numbers({1, 1})};
  report.held = {{0, 1, 3, PerCluster()}, {0, 1, 5, numbers({5, 4})}};
  report.logged_since = {0, ~std::uint64_t{0}};
  report.trimmed = {3, 0};
  BorderReport read;
  ASSERT_TRUE(decode_border(encode_border(report), &read).ok());
  EXPECT_EQ(read.running.index, 1u);
  EXPECT_EQ(read.running.sn, 4u);
  EXPECT_EQ(read.running.depends, report.running.depends);
  EXPECT_EQ(read.running.incarnations, report.running.incarnations);
  ASSERT_EQ(read.held.size(), 2u);
  EXPECT_EQ(read.held[0].sn, 3u);
  EXPECT_EQ(read.held[0].vector.clusters, 0u);
  EXPECT_EQ(read.held[1].vector, report.held[1].vector);
  EXPECT_EQ(read.logged_since, report.logged_since);
  EXPECT_EQ(read.trimmed, report.trimmed);
  for (const char* field : {"logged_since", "trimmed"})
    for (const char* wrong : {"x", "1,x", "1 2", "18446744073709551616"}) {
      Fields fields = encode_border(report);
      fields[field] = wrong;
      EXPECT_EQ(decode_border(fields, &read).code(), Code::kCorrupt) << field << " " << wrong;
    }
  for (const char* field : {"index", "sn", "depends", "incarnations"}) {
    Fields fields = encode_border(report);
    fields.erase(field);
    EXPECT_EQ(decode_border(fields, &read).code(), Code::kCorrupt) << field;
  }
  Fields fields = encode_border(report);
  for (const char* held : {"x", "0:1", "0:1:", "32:1:1", "0:1:1:", "0:1:1 x"}) {
    fields["held"] = held;
    EXPECT_EQ(decode_border(fields, &read).code(), Code::kCorrupt) << held;
  }
}

TEST(ClusterDecision, ComesBackAsItWas) {
  Decision decision;
  decision.record = {.cluster = 1, .sn = 3, .incarnation = 1, .before = numbers({1, 0}), .after = numbers({2, 0})};
  decision.record.forced = true;
  decision.record.claim = federation::ClcRecord::Claim::kCommitted;
  decision.set = "demo.B.0003";
  decision.set_id = "0123";
  decision.at_ms = 1234567890123;
  decision.by = "command";
  Decision read;
  ASSERT_TRUE(decode_decision(encode_decision(decision), &read).ok());
  EXPECT_EQ(read.record, decision.record);
  EXPECT_EQ(read.set, decision.set);
  EXPECT_EQ(read.set_id, decision.set_id);
  EXPECT_EQ(read.at_ms, decision.at_ms);
  for (const char* field : {"verdict", "cluster", "sn", "incarnation", "before", "after", "set"}) {
    Fields fields = encode_decision(decision);
    fields.erase(field);
    EXPECT_EQ(decode_decision(fields, &read).code(), Code::kCorrupt) << field;
  }
}

TEST(ClusterDecision, AVoidOneNamesNoSet) {
  Decision decision;
  decision.record = {1, 3, 1, PerCluster(), PerCluster()};
  decision.record.claim = federation::ClcRecord::Claim::kVoid;
  decision.by = "member 2";
  Decision read;
  ASSERT_TRUE(decode_decision(encode_decision(decision), &read).ok());
  EXPECT_EQ(read.record.claim, federation::ClcRecord::Claim::kVoid);
  EXPECT_EQ(read.by, "member 2");
  EXPECT_EQ(read.set, "");
}

}  // namespace
}  // namespace shadowib
