#include "shadowib/cli/supervise/bounds.h"

#include <gtest/gtest.h>

#include <string>

namespace shadowib::cli {
namespace {

using Sets = std::vector<std::uint32_t>;

std::vector<PastEvent> history(const std::vector<std::string>& lines) {
  std::vector<PastEvent> events;
  for (const std::string& line : lines) {
    PastEvent event;
    EXPECT_TRUE(parse_event("{\"time\":\"2026-11-25T19:40:01.000Z\"," + line + "}", &event)) << line;
    events.push_back(event);
  }
  return events;
}

TEST(Bounds, PausesGrowUntilThereIsProgress) {
  Bounds bounds(0);
  EXPECT_EQ(bounds.pause_ms(), 0);
  bounds.failed(kFromTheBeginning);
  EXPECT_EQ(bounds.pause_ms(), 1000);
  bounds.failed(kFromTheBeginning);
  EXPECT_EQ(bounds.pause_ms(), 2000);
  for (int i = 0; i < 100; ++i) bounds.failed(kFromTheBeginning);
  EXPECT_EQ(bounds.pause_ms(), 300'000);
  EXPECT_FALSE(bounds.exhausted()) << "0 is no bound";
  bounds.committed(1);
  EXPECT_EQ(bounds.pause_ms(), 0);
  bounds.failed(1);
  bounds.committed(1);
  EXPECT_EQ(bounds.in_a_row(), 1u) << "the same set is no progress";
}

TEST(Bounds, GivesUpWithoutProgressOnly) {
  Bounds bounds(3);
  for (std::uint32_t set = 1; set < 20; ++set) {
    bounds.failed(set - 1);
    bounds.failed(set - 1);
    EXPECT_FALSE(bounds.exhausted());
    bounds.committed(set);
  }
  for (int i = 0; i < 3; ++i) bounds.failed(19);
  EXPECT_TRUE(bounds.exhausted());
}

TEST(Bounds, TwoFailuresOfASetMakeTheOneBeforeBetter) {
  Bounds bounds(10);
  const Sets sets{1, 3, 2};
  EXPECT_EQ(bounds.order(sets), (Sets{3, 2, 1}));
  bounds.failed(3);
  EXPECT_EQ(bounds.order(sets), (Sets{3, 2, 1}));
  bounds.failed(3);
  EXPECT_EQ(bounds.order(sets), (Sets{2, 1, 3}));
  bounds.committed(4);
  EXPECT_EQ(bounds.order({1, 2, 3, 4}), (Sets{4, 2, 1, 3})) << "what is spent stays so";
}

TEST(Bounds, ARefusedSetIsPassedOverAtOnce) {
  Bounds bounds(10);
  bounds.not_restarted(3, true);
  EXPECT_EQ(bounds.in_a_row(), 0u) << "the job has not failed";
  EXPECT_EQ(bounds.order({1, 2, 3}), (Sets{2, 1, 3}));
  EXPECT_FALSE(bounds.all_refused({2, 3}));
  bounds.not_restarted(2, true);
  EXPECT_TRUE(bounds.all_refused({2, 3}));
  bounds.not_restarted(1, false);
  EXPECT_EQ(bounds.in_a_row(), 1u);
  EXPECT_FALSE(bounds.is_spent(1)) << "a busy place says nothing about the set";
}

TEST(Bounds, SpentSetsDoNotPushGoodOnesOut) {
  Bounds bounds(10);
  EXPECT_EQ(bounds.to_keep(2, {}), 2u);
  EXPECT_EQ(bounds.to_keep(2, {5, 6, 7}), 2u);
  bounds.failed(6);
  bounds.failed(6);
  // 7 and 5 are the newest good ones.
  EXPECT_EQ(bounds.to_keep(2, {4, 5, 6, 7}), 3u);
}

TEST(Bounds, AnHistoryTellsWhatEarlierSupervisorsHaveSeen) {
  Bounds bounds(4);
  bounds.remember(
      history({R"("event":"started")", R"("event":"checkpoint","number":1)", R"("event":"failure","member":0)",
               R"("event":"failure","member":1)", R"("event":"restart","number":1)",
               R"("event":"failure","member":0)", R"("event":"ended")"}));
  EXPECT_EQ(bounds.in_a_row(), 2u);
  EXPECT_FALSE(bounds.is_spent(1)) << "the first failure was not of a restart from it";
  bounds.failed(1);
  EXPECT_TRUE(bounds.is_spent(1));
  bounds.failed(1);
  EXPECT_TRUE(bounds.exhausted());
}

const std::vector<std::string> kOldLife{R"("event":"started")",
                                        R"("event":"checkpoint","number":57)",
                                        R"("event":"failure","member":0)",
                                        R"("event":"restart","number":3)",
                                        R"("event":"failure","member":0)",
                                        R"("event":"restart","number":3)",
                                        R"("event":"failure","member":0)"};

TEST(Bounds, NumbersOfRemovedSetsComeAgain) {
  Bounds bounds(4);
  bounds.remember(history(kOldLife));
  bounds.not_restarted(57, true);
  EXPECT_TRUE(bounds.is_spent(3));
  bounds.present({});
  EXPECT_FALSE(bounds.is_spent(3));
  EXPECT_FALSE(bounds.all_refused({57}));
  EXPECT_EQ(bounds.in_a_row(), 3u);
  bounds.present({1});
  EXPECT_EQ(bounds.in_a_row(), 0u) << "a set is progress, whatever the numbers of those before";
}

TEST(Bounds, NumbersThatCameAgainBeforeAreSeenInTheHistory) {
  std::vector<std::string> lines = kOldLife;
  for (const char* number : {"1", "2", "3"})
    lines.push_back(R"("event":"checkpoint","number":)" + std::string(number));
  Bounds bounds(4);
  bounds.remember(history(lines));
  bounds.present({2, 3, 1});
  EXPECT_EQ(bounds.order({1, 2, 3}), (Sets{3, 2, 1}));
  EXPECT_EQ(bounds.in_a_row(), 0u);
}

}  // namespace
}  // namespace shadowib::cli
