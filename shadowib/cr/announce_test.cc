// Numbers of queue pairs that members of one adapter make after a restart.
#include "shadowib/cr/announce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "shadowib/cr/tests/member_fixture.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// Both members were given the numbers 100 to 140 before the restart, and reserve all of them.
class LateNumbers : public MemberTest {
 protected:
  void SetUp() override {
    MemberTest::SetUp();
    for (std::uint32_t n = 100; n <= 140; ++n) {
      registry().reserved_qp_nums.push_back(n);
      registry().reserved_srq_nums.push_back(n);
    }
  }
  void TearDown() override {
    registry().reserved_qp_nums.clear();
    registry().reserved_srq_nums.clear();
    MemberTest::TearDown();
  }
  static std::uint32_t choose(std::uint32_t member, std::uint32_t real) {
    g_job.info.member = member;
    VirtualQpNum number{};
    EXPECT_TRUE(choose_qp_num({real}, &number).ok());
    return number.value;
  }
};

// Members A and B, whose adapter gives each number once.
TEST_F(LateNumbers, AreGivenOnce) {
  std::set<std::uint32_t> given;
  for (std::uint32_t real = 100; real <= 145; ++real)
    EXPECT_TRUE(given.insert(choose(real % 2, real)).second) << real;
  EXPECT_EQ(given.count(141), 1u) << "a number that is free stays as it is";
  EXPECT_TRUE(std::none_of(given.begin(), given.end(), [](std::uint32_t n) { return n >= 100 && n <= 140; }));
}

TEST_F(LateNumbers, ARealOneThatLooksLateIsClaimedToo) {
  const std::uint32_t late = choose(0, 100);
  EXPECT_TRUE(is_late_number(late));
  EXPECT_NE(choose(1, late), late);
}

TEST_F(LateNumbers, AreFreeAgainOnceTheirQueuePairIsGone) {
  ShadowDevice device{};
  const auto context = std::make_unique<ShadowContext>();
  context->device = &device;
  ShadowQp qp;
  qp.context = context.get();
  qp.qp_num = {choose(0, 100)};
  registry().reserved_qp_nums.push_back(qp.qp_num.value);
  withdraw_late_qp(qp);
  registry().reserved_qp_nums.pop_back();
  EXPECT_NE(choose(1, 100), qp.qp_num.value) << "one that is reserved may be another member's claim";
  withdraw_late_qp(qp);
  EXPECT_EQ(choose(1, 100), qp.qp_num.value);
}

TEST_F(LateNumbers, OfXrcQueuesAreApart) {
  VirtualSrqNum queue{};
  EXPECT_TRUE(choose_srq_num({100}, &queue).ok());
  EXPECT_EQ(queue.value, choose(1, 100));
}

TEST_F(LateNumbers, AreNotChosenWithoutAnAnswer) {
  std::filesystem::remove_all(directory_);
  VirtualQpNum number{};
  EXPECT_FALSE(choose_qp_num({100}, &number).ok());
  EXPECT_TRUE(choose_qp_num({141}, &number).ok()) << "nobody is asked";
  g_job.info.generation = 0;
  EXPECT_TRUE(choose_qp_num({100}, &number).ok());
  EXPECT_EQ(number.value, 100u);
}

}  // namespace
}  // namespace shadowib
