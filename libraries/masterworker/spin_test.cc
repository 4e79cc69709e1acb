#include "libraries/masterworker/spin.h"

#include <gtest/gtest.h>

namespace shadowib::masterworker {
namespace {

// Both sides polled for 20 us. A wake-up takes longer, so one sleep made each side sleep for each message.
TEST(Spin, OutlastsAWakeUpWhereMessagesComeSoon) {
  Spin spin;
  EXPECT_TRUE(spin.over(Spin::kShortNs)) << "nothing is known yet";
  spin.came(50'000);  // by a wake-up of the other side
  EXPECT_FALSE(spin.over(50'000));
  EXPECT_TRUE(spin.over(Spin::kLongNs)) << "no end";
}

// Else sixteen workers on two processors would poll beside those that work.
TEST(Spin, GivesWayWhereMessagesTakeTime) {
  Spin spin;
  spin.came(1'000);
  spin.came(5'000'000);
  EXPECT_FALSE(spin.over(Spin::kShortNs - 1));
  EXPECT_TRUE(spin.over(Spin::kShortNs));
}

}  // namespace
}  // namespace shadowib::masterworker
