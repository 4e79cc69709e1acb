#include "shadowib/cr/patience.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

constexpr std::int64_t kLook = Patience::kLookNs, kQuiet = 4 * kLook;

struct PatienceTest : ::testing::Test {
  // After so many looks.
  bool is_lost_at(int look) {
    now_ = look * kLook;
    return patience_.is_lost(
        now_, [this] { return progress_; }, [] { return kQuiet; });
  }
  Patience patience_{0};
  std::uint64_t progress_ = 0;
  std::int64_t now_ = 0;
};

TEST_F(PatienceTest, IsLostOnlyWhenNothingHasMovedForSoLong) {
  for (int look = 1; look <= 5; ++look) EXPECT_FALSE(is_lost_at(look)) << look;
  EXPECT_TRUE(is_lost_at(6));
}

TEST_F(PatienceTest, LastsAsLongAsSomethingMoves) {
  for (int look = 1; look < 1000; ++look) {
    if (look % 4 == 0) --progress_;  // a sum of counters that wrap may become less
    ASSERT_FALSE(is_lost_at(look)) << look;
  }
  EXPECT_FALSE(is_lost_at(1000));  // four looks after the last
  EXPECT_TRUE(is_lost_at(1001));
}

TEST_F(PatienceTest, LooksNowAndThenOnly) {
  int looks = 0;
  for (std::int64_t now = 0; now < 10 * kLook; now += kLook / 100)
    patience_.is_lost(
        now, [&] { return ++looks; }, [] { return kQuiet; });
  EXPECT_EQ(looks, 9);
}

}  // namespace
}  // namespace shadowib
