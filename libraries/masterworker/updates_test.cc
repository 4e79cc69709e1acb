#include "libraries/masterworker/updates.h"

#include <gtest/gtest.h>

#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/replica.h"

namespace shadowib::masterworker {
namespace {

Payload text(const char* words) { return Payload::copy(words, std::strlen(words)); }

TEST(UpdateLog, KeepsNothingThatNobodyNeeds) {
  UpdateLog log;
  for (int i = 0; i < 100; ++i) log.append(1, text("in"), text("out"));
  EXPECT_EQ(log.count(), 100u);
  EXPECT_EQ(log.kept_bytes(), 0u);
  EXPECT_TRUE(log.reaches(100));
  EXPECT_FALSE(log.reaches(99));
  EXPECT_FALSE(log.reaches(101));
}

TEST(UpdateLog, ReachesBackToTheOldestBirth) {
  UpdateLog log;
  log.append(1, text("a"), {});
  log.pin(1);
  log.append(1, text("b"), {});
  log.pin(2);
  log.append(2, text("c"), {});
  ASSERT_TRUE(log.reaches(1));
  EXPECT_EQ(log.find(2)->phase, 1u);
  EXPECT_EQ(log.find(3)->phase, 2u);
  EXPECT_EQ(log.find(1), nullptr);
  EXPECT_EQ(log.find(4), nullptr);
  log.release(1);
  EXPECT_FALSE(log.reaches(1));
  EXPECT_TRUE(log.reaches(2));
  log.release(2);
  EXPECT_EQ(log.kept_bytes(), 0u);
}

TEST(UpdateLog, KeepsAllFromTheBeginningUpToABound) {
  UpdateLog log;
  const std::uint64_t most = 2 * UpdateLog::cost({1, text("four"), {}});
  log.keep_all(most);
  log.append(1, text("four"), {});
  log.pin(1);
  log.append(1, text("more"), {});
  EXPECT_TRUE(log.reaches(0));
  EXPECT_FALSE(log.has_let_go());
  log.append(1, text("!"), {});
  EXPECT_FALSE(log.reaches(0));
  EXPECT_TRUE(log.has_let_go());
  EXPECT_FALSE(log.has_let_go()) << "said once";
  EXPECT_TRUE(log.reaches(1)) << "a worker is being born";
  log.release(1);
  EXPECT_EQ(log.kept_bytes(), 0u);
  log.keep_all(most);  // its beginning is gone
  EXPECT_FALSE(log.reaches(0));
}

// Only the bytes of messages counted: a million updates of 8 bytes took 30 times the memory that was allowed.
TEST(UpdateLog, BoundsTheMemoryOfSmallUpdates) {
  constexpr std::uint64_t kMost = 1 << 20;
  UpdateLog log;
  log.keep_all(kMost);
  while (log.reaches(0)) log.append(1, text("eight..."), text("eight..."));
  EXPECT_GT(log.count(), kMost / 512) << "it keeps updates";
  EXPECT_LT(log.count(), kMost / 128);
}

TEST(UpdateLog, TellsHistoriesApart) {
  const ChainHash start;
  EXPECT_NE(extend(start, text("ab"), text("c")), extend(start, text("a"), text("bc")));
  EXPECT_NE(extend(extend(start, text("a"), {}), text("b"), {}), extend(extend(start, text("b"), {}), text("a"), {}));
  EXPECT_EQ(extend(start, text("a"), text("b")), extend(start, text("a"), text("b")));
}

TEST(Replica, GuardM2AppliesEachUpdateOnceAndInOrder) {
  Replica replica(3, {});
  EXPECT_EQ(replica.next(3, {}, {}), Replica::Verdict::kKnown);
  EXPECT_EQ(replica.next(5, {}, {}), Replica::Verdict::kGap);
  EXPECT_EQ(replica.next(4, {}, {}), Replica::Verdict::kApply);
  EXPECT_EQ(replica.count(), 4u);
  switch_guard(Guard::kSkipKnown, false);
  EXPECT_EQ(replica.next(4, {}, {}), Replica::Verdict::kApply);  // the harm: twice
  switch_guard(Guard::kSkipKnown, true);
}

}  // namespace
}  // namespace shadowib::masterworker
