// Which message is held, and what a CLC takes of it: by policy.
#include "hooks/federation/rule.h"

#include <gtest/gtest.h>

#include <limits>

namespace shadowib::federation {
namespace {

RunningCluster cluster(unsigned index, Sn sn, std::initializer_list<Sn> depends) {
  RunningCluster c{index, sn, PerCluster(static_cast<unsigned>(depends.size())),
                   PerCluster(static_cast<unsigned>(depends.size()))};
  unsigned i = 0;
  for (Sn entry : depends) c.depends[i++] = entry;
  return c;
}

ClcRecord committed(Policy policy, RunningCluster* c, std::vector<Stamp> held) {
  ClcRecord record;
  EXPECT_TRUE(next_clc(policy, *c, held, &record).ok());
  commit(c, record);
  return record;
}

// Figure 3 of the paper: m1 and m2 have the same SN, and force one CLC.
TEST(FederationRule, OneClcForAllMessagesOfAnInterval) {
  const RunningCluster sender = cluster(0, 1, {0, 0});
  RunningCluster receiver = cluster(1, 1, {0, 0});
  EXPECT_EQ(judge(Policy::kPaper, receiver, stamp_of(sender)), Arrival::kHold);
  const ClcRecord record = committed(Policy::kPaper, &receiver, {stamp_of(sender)});
  EXPECT_EQ(record.sn, 2u);
  EXPECT_TRUE(record.forced);
  EXPECT_EQ(record.before[0], 0u);
  EXPECT_EQ(record.after[0], 1u);
  EXPECT_EQ(record.claim, ClcRecord::Claim::kUndecided);
  EXPECT_EQ(judge(Policy::kPaper, receiver, stamp_of(sender)), Arrival::kDeliver);
  EXPECT_EQ(judge(Policy::kPaper, receiver, stamp_of(cluster(0, 2, {0, 0}))), Arrival::kHold);
}

TEST(FederationRule, TheFirstOneIsHeldBeforeClcOne) {
  const RunningCluster receiver = cluster(1, 0, {0, 0});
  for (Policy policy : {Policy::kPaper, Policy::kVector, Policy::kIndex, Policy::kNone})
    EXPECT_EQ(judge(policy, receiver, stamp_of(cluster(0, 1, {0, 0}))), Arrival::kHold);
}

TEST(FederationRule, OneClcTakesTheGreatestOfAllHeld) {
  RunningCluster receiver = cluster(2, 4, {1, 5, 0});
  const ClcRecord record = committed(
      Policy::kPaper, &receiver,
      {stamp_of(cluster(0, 3, {0, 0, 0})), stamp_of(cluster(0, 2, {0, 0, 0})), stamp_of(cluster(1, 6, {0, 0, 0}))});
  EXPECT_EQ(record.sn, 5u);
  EXPECT_EQ(record.after[0], 3u);
  EXPECT_EQ(record.after[1], 6u);
  EXPECT_EQ(record.after[2], 0u);
}

TEST(FederationRule, VectorLooksAtAllEntriesButItsOwn) {
  RunningCluster receiver = cluster(2, 9, {3, 5, 0});
  EXPECT_EQ(judge(Policy::kVector, receiver, stamp_of(cluster(0, 3, {0, 5, 12}))), Arrival::kDeliver);
  const Stamp carried = stamp_of(cluster(0, 3, {0, 6, 0}));
  EXPECT_EQ(judge(Policy::kPaper, receiver, carried), Arrival::kDeliver);
  EXPECT_EQ(judge(Policy::kVector, receiver, carried), Arrival::kHold);
  const ClcRecord record = committed(Policy::kVector, &receiver, {carried});
  EXPECT_EQ(record.after[1], 6u);
  EXPECT_EQ(record.after[2], 0u);
  // What came by way of 0 need not force again when 1 sends it.
  EXPECT_EQ(judge(Policy::kVector, receiver, stamp_of(cluster(1, 6, {0, 0, 0}))), Arrival::kDeliver);
}

TEST(FederationRule, IndexTakesTheNumberOfTheSender) {
  RunningCluster receiver = cluster(1, 4, {0, 0});
  const Stamp equal = stamp_of(cluster(0, 4, {0, 0})), above = stamp_of(cluster(0, 9, {0, 0}));
  EXPECT_EQ(judge(Policy::kIndex, receiver, equal), Arrival::kDeliver);
  note_delivered(Policy::kIndex, &receiver, equal);
  EXPECT_EQ(receiver.depends[0], 4u);
  EXPECT_EQ(judge(Policy::kIndex, receiver, above), Arrival::kHold);
  EXPECT_EQ(committed(Policy::kIndex, &receiver, {above}).sn, 9u);
  EXPECT_EQ(judge(Policy::kIndex, receiver, above), Arrival::kDeliver);
  EXPECT_EQ(committed(Policy::kIndex, &receiver, {}).sn, 10u);
}

TEST(FederationRule, AClcTakesANumberOfItsOwnEvenIfTheHeldOneIsLess) {
  RunningCluster receiver = cluster(1, 6, {0, 0});
  EXPECT_EQ(committed(Policy::kIndex, &receiver, {stamp_of(cluster(0, 3, {0, 0}))}).sn, 7u);
}

TEST(FederationRule, DeadAndImpossibleStampsAreNeverDelivered) {
  RunningCluster receiver = cluster(1, 3, {2, 0});
  receiver.incarnations[0] = 1;
  RunningCluster sender = cluster(0, 2, {0, 0});
  EXPECT_EQ(judge(Policy::kPaper, receiver, stamp_of(sender)), Arrival::kDead);
  sender.incarnations[0] = 2;
  EXPECT_EQ(judge(Policy::kPaper, receiver, stamp_of(sender)), Arrival::kDead);
  sender.incarnations[0] = 1;
  EXPECT_EQ(judge(Policy::kPaper, receiver, stamp_of(sender)), Arrival::kDeliver);
  Stamp stamp = stamp_of(sender);
  stamp.cluster = 2;
  EXPECT_EQ(judge(Policy::kPaper, receiver, stamp), Arrival::kDead);
  stamp.cluster = 1;
  EXPECT_EQ(judge(Policy::kPaper, receiver, stamp), Arrival::kDead);
  stamp = stamp_of(sender);
  stamp.sn = 0;
  EXPECT_EQ(judge(Policy::kNone, receiver, stamp), Arrival::kDead);
}

TEST(FederationRule, GoingBackCutsDAtTheNewSns) {
  RunningCluster c = cluster(1, 8, {9, 0, 4});
  ClcRecord record{1, 5, 0, PerCluster(3), PerCluster(3), true, ClcRecord::Claim::kCommitted};
  record.after[0] = 7;
  record.after[2] = 3;
  PerCluster sns(3), incarnations(3);
  sns[0] = 6, sns[1] = 5, sns[2] = 4;
  incarnations[0] = incarnations[1] = 1;
  go_back(&c, record, sns, incarnations);
  EXPECT_EQ(c.sn, 5u);
  EXPECT_EQ(c.depends[0], 6u);
  EXPECT_EQ(c.depends[2], 3u);
  EXPECT_EQ(c.incarnations, incarnations);
  // The held message comes again, with SN 6, and forces no second CLC.
  RunningCluster sender = cluster(0, 6, {0, 0, 0});
  sender.incarnations = incarnations;
  EXPECT_EQ(judge(Policy::kPaper, c, stamp_of(sender)), Arrival::kDeliver);
}

TEST(FederationRule, UsedUpNumbersAreRefused) {
  ClcRecord record;
  const Status status = next_clc(Policy::kPaper, cluster(1, std::numeric_limits<Sn>::max(), {0, 0}), {}, &record);
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_TRUE(next_clc(Policy::kPaper, cluster(1, std::numeric_limits<Sn>::max() - 1, {0, 0}), {}, &record).ok());
}

}  // namespace
}  // namespace shadowib::federation
