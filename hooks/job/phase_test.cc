#include "hooks/job/phase.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

TEST(Phase, TextsAreInOrder) {
  int before = -1;
  for (const PhaseText& entry : kCheckpointPhases) {
    EXPECT_GT(number_of(entry.phase), before);
    before = number_of(entry.phase);
  }
}

TEST(Phase, IsToldOfANumberThatThisVersionDoesNotHave) {
  EXPECT_STREQ(phase_text(0).name, "wait");
  EXPECT_STREQ(phase_text(35).name, "stop");
  EXPECT_STREQ(phase_text(62).name, "inspect");
  EXPECT_STREQ(phase_text(99).name, "outcome");
  EXPECT_STREQ(phase_text(Phase::kSettle).doing, "settling the network");
}

}  // namespace
}  // namespace shadowib
