#include "shadowib/objects/registry.h"

#include <gtest/gtest.h>

#include <set>

namespace shadowib {
namespace {

class Keys : public testing::Test {
 protected:
  // As after a restart: these are known to peers.
  void SetUp() override { registry().reserved_keys = {0x1234500, 0x1234601, 0xe1234702}; }
  void TearDown() override {
    registry().reserved_keys.clear();
    registry().reserved_blocks.clear();
  }
  static std::uint32_t key(std::uint32_t real) { return registry().choose_key({real}, true).value; }
  static std::uint32_t window(std::uint32_t real) { return registry().choose_window_key({real}).value; }
};

TEST_F(Keys, AreTheRealOnesAsLongAsNobodyElseMayHaveThem) {
  EXPECT_EQ(key(0x7654300), 0x7654300u);
  EXPECT_EQ(window(0x7654300), 0x7654300u);
  registry().reserved_keys.clear();  // before any restart
  EXPECT_EQ(key(0xe0000001), 0xe0000001u);
}

// What is not in that range is a real key or none.
TEST_F(Keys, OthersAreOfTheLateOnes) {
  EXPECT_EQ(key(0x1234500), 0xe1234500u);
  EXPECT_TRUE(is_late_key(window(0x1234601)));
  EXPECT_TRUE(is_late_key(key(0xe7654300)));
  EXPECT_FALSE(is_late_key(key(0xd7654300)));
}

TEST_F(Keys, NoLateOneComesTwice) {
  std::set<std::uint32_t> seen{0xe1234702};
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(seen.insert(key(0x1234500)).second);
  std::set<std::uint32_t> blocks;
  for (std::uint32_t k : seen) blocks.insert(window_block(k));
  for (int i = 0; i < 100; ++i) {
    const std::uint32_t k = window(0x1234601);
    EXPECT_EQ(k & 0xff, 0x01u);
    EXPECT_TRUE(blocks.insert(window_block(k)).second);
  }
  // Round the end of the range.
  registry().reserved_keys.push_back(0xeffffff0);
  EXPECT_EQ(key(0xeffffff0), 0xe00000f0u);
}

// A queue pair that has sent a datagram to a handle, and whose other slots are as many others'.
class DestroyedHandles : public testing::Test {
 protected:
  static constexpr std::uint32_t kSlots = 1024;
  void SetUp() override {
    qp_.qp.qp_base.qp_type = IBV_QPT_UD;
    ASSERT_TRUE(qp_.send.create(kSlots, 1, 16, false));
    registry().qps.push_back(qp_);
  }
  void TearDown() override {
    registry().qps.erase(registry().qps.iterator_to(qp_));
    registry().sweep_address_handles();
    EXPECT_EQ(pd_.users, 0u);
  }
  ShadowAh* make() {
    auto* ah = new ShadowAh{};
    ah->ah.pd = &pd_.pd;
    ++pd_.users;
    registry().ahs.push_back(*ah);
    return ah;
  }
  void send_to(ShadowAh& ah) {
    SendSlot& slot = qp_.send.slot(qp_.send.head++);
    slot.wr.wr.ud.ah = &ah.ah;
    slot.pend(SlotHeader::kPlain);
  }

  ShadowPd pd_;
  ShadowQp qp_;
};

TEST_F(DestroyedHandles, StayWhileARequestThatHasNotRunNamesThem) {
  ShadowAh* const named = make();
  send_to(*named);
  registry().note_destroyed(*named);
  registry().note_destroyed(*make());
  registry().sweep_address_handles();
  EXPECT_EQ(pd_.users, 1u);
  qp_.send.retire_to(qp_.send.head);
  registry().sweep_address_handles();
  EXPECT_EQ(pd_.users, 0u);
}

// Each is destroyed behind its datagram, and none runs. All slots are looked at once for every quarter of them.
TEST_F(DestroyedHandles, AreLookedForSeldom) {
  std::size_t sweeps = 0, before = 0;
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    send_to(*make());
    registry().note_destroyed(*make());
    const std::size_t left = pd_.users;
    sweeps += left < before;
    before = left;
  }
  EXPECT_GT(sweeps, 2u);
  EXPECT_LT(sweeps, 16u);
  EXPECT_LE(before, kSlots + 64 + kSlots / 4);
  for (auto it = registry().ahs.begin(); it != registry().ahs.end();) registry().note_destroyed(*it++);
  qp_.send.retire_to(qp_.send.head);
}

}  // namespace
}  // namespace shadowib
