#include "shadowib/objects/shared_receive_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace shadowib {
namespace {

class SharedReceiveLogTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(log_.create(4, 2)); }
  RecvSlot* take(std::uint64_t wr_id) {
    RecvSlot* slot = log_.take();
    if (slot != nullptr) slot->user_wr_id = wr_id;
    return slot;
  }
  std::vector<std::uint64_t> pending() {
    std::vector<std::uint64_t> ids;
    for (const RecvSlot* slot : log_.pending()) ids.push_back(slot->user_wr_id);
    return ids;
  }
  SharedReceiveLog log_;
};

TEST_F(SharedReceiveLogTest, IsFullWhenAllArePending) {
  std::vector<RecvSlot*> slots;
  for (std::uint64_t i = 0; i < 4; ++i) ASSERT_NE(slots.emplace_back(take(i)), nullptr);
  EXPECT_EQ(take(9), nullptr);
  slots[2]->complete(IBV_WC_SUCCESS);
  EXPECT_EQ(take(4), slots[2]);
  EXPECT_EQ(take(9), nullptr);
  EXPECT_EQ(log_.pending_count(), 4u);
}

// One queue pair may sit on a receive for as long as it likes while others use up theirs.
TEST_F(SharedReceiveLogTest, OneThatStaysPendingIsSteppedOver) {
  RecvSlot* held = take(100);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    RecvSlot* slot = take(i);
    ASSERT_NE(slot, nullptr);
    ASSERT_NE(slot, held);
    slot->complete(IBV_WC_SUCCESS);
  }
  EXPECT_EQ(pending(), std::vector<std::uint64_t>{100});
}

TEST_F(SharedReceiveLogTest, WhatIsPendingComesInTheOrderOfPosting) {
  std::vector<RecvSlot*> slots;
  for (std::uint64_t i = 0; i < 4; ++i) slots.push_back(take(i));
  slots[1]->complete(IBV_WC_SUCCESS);
  take(4);
  slots[0]->complete(IBV_WC_WR_FLUSH_ERR);
  take(5);
  EXPECT_EQ(pending(), (std::vector<std::uint64_t>{2, 3, 4, 5}));
}

TEST_F(SharedReceiveLogTest, ARefusedOneIsFreeAgain) {
  for (std::uint64_t i = 0; i < 100; ++i) take(i)->release();
  EXPECT_EQ(log_.pending_count(), 0u);
}

}  // namespace
}  // namespace shadowib
