// The paper's example, and histories that contradict themselves. Random games are in tests/games_test.cc.
#include "hooks/federation/line.h"

#include <gtest/gtest.h>

#include <functional>

#include "hooks/federation/collection.h"

namespace shadowib::federation {
namespace {

PerCluster numbers(std::initializer_list<Sn> list) {
  PerCluster result(static_cast<unsigned>(list.size()));
  unsigned i = 0;
  for (Sn entry : list) result[i++] = entry;
  return result;
}

ClcRecord record(unsigned cluster, Sn sn, PerCluster before, PerCluster after) {
  return {cluster, sn, 0, before, after, before != after, ClcRecord::Claim::kCommitted};
}

ClusterHistory history(unsigned cluster, std::vector<ClcRecord> kept) {
  RunningCluster running{cluster, kept.back().sn, kept.back().after, PerCluster(kept.back().after.clusters)};
  return {std::move(kept), running, {}};
}

// Section 4 of the paper: m1 of 1 forces CLC 2 of 2; m3 of 2 forces one of 3; m4 of 1 one of 3; m5 of 3 one of 1.
std::vector<ClusterHistory> figure_four() {
  const PerCluster none = numbers({0, 0, 0});
  return {history(0, {record(0, 1, none, none), record(0, 2, none, none), record(0, 3, none, numbers({0, 0, 4}))}),
          history(1, {record(1, 1, none, none), record(1, 2, none, numbers({1, 0, 0})),
                      record(1, 3, numbers({1, 0, 0}), numbers({1, 0, 0}))}),
          history(2, {record(2, 1, none, none), record(2, 2, none, none), record(2, 3, none, numbers({0, 3, 0})),
                      record(2, 4, numbers({0, 3, 0}), numbers({2, 3, 0}))})};
}

TEST(FederationLine, FigureFour) {
  std::vector<ClusterHistory> all = figure_four();
  all[1].running.reset();
  RecoveryLine line;
  ASSERT_TRUE(find_line(all, &line).ok());
  EXPECT_EQ(line.clusters, (std::vector<RecoveryLine::Place>{{false, 3, 2}, {false, 3, 2}, {false, 3, 2}}));
  EXPECT_EQ(line.sns(all), numbers({3, 3, 3}));
}

TEST(FederationLine, WhoDependsOnNobodyGoesBackAlone) {
  std::vector<ClusterHistory> all = figure_four();
  all[0].running.reset();
  RecoveryLine line;
  ASSERT_TRUE(find_line(all, &line).ok());
  EXPECT_EQ(line.clusters, (std::vector<RecoveryLine::Place>{{false, 3, 2}, {.stays = true}, {.stays = true}}));
  EXPECT_EQ(line.sns(all), numbers({3, 3, 4}));
}

TEST(FederationLine, APublishedLineBinds) {
  std::vector<ClusterHistory> all = figure_four();
  all[2].bound = 3;  // was published, and is not reached: its members still answer
  RecoveryLine line;
  ASSERT_TRUE(find_line(all, &line).ok());
  EXPECT_EQ(line.clusters, (std::vector<RecoveryLine::Place>{{false, 3, 2}, {.stays = true}, {false, 3, 2}}));
  all[2].bound = 7;
  EXPECT_EQ(find_line(all, &line).code(), Code::kCorrupt);
}

TEST(FederationLine, NoLineBehindTheOldestClc) {
  std::vector<ClusterHistory> all = figure_four();
  all[2].kept.erase(all[2].kept.begin(), all[2].kept.begin() + 3);
  all[1].running.reset();
  RecoveryLine line;
  const Status status = find_line(all, &line);
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_STREQ(status.text(), "cluster 2 would have to go back behind its oldest CLC, which is 4");
  ClcCollection collection;
  EXPECT_EQ(find_collection(all, PerCluster(3), &collection).code(), Code::kNotFound);
}

TEST(FederationLine, AClusterWithoutClcHasNoLine) {
  std::vector<ClusterHistory> all = figure_four();
  all[1].kept.clear();
  all[1].running.reset();
  RecoveryLine line;
  EXPECT_EQ(find_line(all, &line).code(), Code::kNotFound);
}

TEST(FederationLine, WhatContradictsItselfIsNotUsed) {
  struct Case {
    const char* says;
    Code code;
    std::function<void(std::vector<ClusterHistory>*)> spoil;
  };
  const Case cases[] = {
      {"neither committed nor void", Code::kBusy,
       [](auto* a) { (*a)[0].kept[2].claim = ClcRecord::Claim::kUndecided; }},
      {"is void", Code::kCorrupt, [](auto* a) { (*a)[0].kept[1].claim = ClcRecord::Claim::kVoid; }},
      {"of another cluster", Code::kCorrupt, [](auto* a) { (*a)[0].kept[1].cluster = 1; }},
      {"has number 0", Code::kCorrupt, [](auto* a) { (*a)[0].kept[0].sn = 0; }},
      {"another number of clusters", Code::kCorrupt,
       [](auto* a) {
         (*a)[0].kept[0].before = numbers({0, 0});
       }},
      {"another number of clusters", Code::kCorrupt,
       [](auto* a) {
         (*a)[0].kept[0].after = numbers({0, 0});
       }},
      {"became less", Code::kCorrupt,
       [](auto* a) {
         (*a)[1].kept[2].before = numbers({2, 0, 0});
       }},
      {"its own cluster", Code::kCorrupt,
       [](auto* a) {
         (*a)[1].kept[2].after = numbers({1, 1, 0});
       }},
      {"not above", Code::kCorrupt, [](auto* a) { (*a)[1].kept[2].sn = 2; }},
      {"less than the one before", Code::kCorrupt,
       [](auto* a) {
         (*a)[2].kept[3].before = (*a)[2].kept[3].after = numbers({0, 0, 0});
         (*a)[2].kept[2].before = numbers({0, 3, 0});
       }},
      {"answer for another", Code::kCorrupt, [](auto* a) { (*a)[2].running->index = 1; }},
      {"are at SN 4, and its last CLC is 5", Code::kCorrupt, [](auto* a) { (*a)[2].kept[3].sn = 5; }},
      {"depend on less", Code::kCorrupt,
       [](auto* a) {
         (*a)[1].running->depends = numbers({0, 0, 0});
       }},
  };
  for (const Case& c : cases) {
    std::vector<ClusterHistory> all = figure_four();
    c.spoil(&all);
    RecoveryLine line;
    const Status status = find_line(all, &line);
    EXPECT_EQ(status.code(), c.code) << c.says;
    EXPECT_NE(std::string(status.text()).find(c.says), std::string::npos) << status.text();
    ClcCollection collection;
    EXPECT_EQ(find_collection(all, PerCluster(3), &collection).code(), c.code) << c.says;
  }
}

TEST(FederationLine, AtMostThirtyTwoClusters) {
  std::vector<ClusterHistory> all;
  for (unsigned i = 0; i < kMaxClusters; ++i)
    all.push_back(history(i, {record(i, 1, PerCluster(kMaxClusters), PerCluster(kMaxClusters))}));
  all[31].running.reset();
  RecoveryLine line;
  ASSERT_TRUE(find_line(all, &line).ok());
  EXPECT_TRUE(line.clusters[0].stays);
  EXPECT_EQ(line.clusters[31], (RecoveryLine::Place{false, 1, 0}));
  all.push_back(all[0]);
  EXPECT_EQ(find_line(all, &line).code(), Code::kUsage);
  EXPECT_EQ(find_line({}, &line).code(), Code::kUsage);
}

TEST(FederationCollection, KeepsWhatAFailureNeeds) {
  std::vector<ClusterHistory> all = figure_four();
  ClcCollection collection;
  ASSERT_TRUE(find_collection(all, PerCluster(3), &collection).ok());
  EXPECT_EQ(collection.oldest, numbers({3, 3, 3}));
  EXPECT_EQ(collect(collection, PerCluster(3), &all), 6u);
  EXPECT_EQ(all[0].kept.size(), 1u);
  EXPECT_EQ(all[2].kept.size(), 2u);
}

TEST(FederationCollection, AClusterWithoutClcKeepsNobody) {
  const PerCluster none = numbers({0, 0});
  std::vector<ClusterHistory> all = {history(0, {record(0, 1, none, none), record(0, 2, none, none)}), {}};
  all[1].running = RunningCluster{1, 0, none, none};
  ClcCollection collection;
  ASSERT_TRUE(find_collection(all, none, &collection).ok());
  EXPECT_EQ(collection.oldest, numbers({2, 0}));
}

}  // namespace
}  // namespace shadowib::federation
