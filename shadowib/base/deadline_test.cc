#include "shadowib/base/deadline.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

TEST(Deadline, HasTimeLeftUntilItHasPassed) {
  const Deadline soon = Deadline::in_ns(2'000'000);
  for (std::int64_t left = soon.left_ns(), now; left > 0; left = now) {
    EXPECT_LE(left, 2'000'000);
    now = soon.left_ns();
    EXPECT_LE(now, left);
  }
  EXPECT_TRUE(soon.has_passed());
  EXPECT_EQ(soon.left_ms(), 0);
}

TEST(Deadline, CountsMillisecondsUp) {
  EXPECT_EQ(Deadline::in_ms(0).left_ms(), 0);
  EXPECT_TRUE(Deadline::in_ms(0).has_passed());
  const Deadline later = Deadline::in_ms(3'600'000);
  const int left_ms = later.left_ms();
  EXPECT_GT(left_ms, 3'500'000);
  EXPECT_LE(left_ms, 3'600'000);
  EXPECT_GE(left_ms * std::int64_t{1'000'000}, later.left_ns());
  EXPECT_FALSE(later.has_passed());
}

TEST(Deadline, MayNeverCome) {
  const Deadline never = Deadline::in_ms_or_never(-1);
  EXPECT_FALSE(never.has_passed());
  EXPECT_EQ(never.left_ms(), INT_MAX);
  EXPECT_EQ(never.left_ns(), INT64_MAX);
  EXPECT_EQ(Deadline::in_ms(INT_MAX).left_ms(), INT_MAX);
  EXPECT_TRUE(Deadline::in_ms_or_never(0).has_passed());
  EXPECT_TRUE(Deadline::in_ms(-1).has_passed());
  EXPECT_EQ(std::min(never, Deadline::in_ms(0)).left_ms(), 0);
}

}  // namespace
}  // namespace shadowib
