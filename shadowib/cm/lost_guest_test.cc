// Queue pairs that led to a guest before a restart.
#include "shadowib/cm/lost_guest.h"

#include <gtest/gtest.h>

#include <memory>

namespace shadowib::cm {
namespace {

TEST(LostGuest, IsOfTheQueuePairOfThatAdapter) {
  constexpr std::uint32_t kNumber = 17;
  ShadowDevice devices[2]{};
  std::unique_ptr<ShadowContext> contexts[2];
  ShadowQp pairs[2];
  ObjectList<ShadowQp> qps;
  for (int i = 0; i < 2; ++i) {
    devices[i].guid = static_cast<std::uint64_t>(i + 1);
    contexts[i] = std::make_unique<ShadowContext>();
    contexts[i]->device = &devices[i];
    pairs[i].context = contexts[i].get();
    pairs[i].qp_num = {kNumber};
    pairs[i].doomed = true;
    qps.push_back(pairs[i]);
  }
  pairs[1].remote.is_guest = true;
  EXPECT_FALSE(has_lost_guest(qps, 1, kNumber));
  EXPECT_TRUE(has_lost_guest(qps, 2, kNumber));
  EXPECT_FALSE(has_lost_guest(qps, 2, kNumber + 1));
  pairs[1].doomed = false;
  EXPECT_FALSE(has_lost_guest(qps, 2, kNumber)) << "it came back";
  qps.clear();
}

}  // namespace
}  // namespace shadowib::cm
