#include "shadowib/objects/work_queue.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

class WorkQueueTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(queue.create(8, 2, 16, false)); }
  SendSlot& post(bool signaled) {
    EXPECT_TRUE(queue.has_room());
    SendSlot& slot = queue.slot(queue.head);
    slot.sequence = queue.head++;
    slot.done = false;
    slot.flags = signaled ? IBV_SEND_SIGNALED : 0;
    return slot;
  }
  WorkQueue<SendSlot> queue;
};

TEST_F(WorkQueueTest, ACompletionRetiresEverythingBeforeIt) {
  for (int i = 0; i < 5; ++i) post(i == 3);
  EXPECT_EQ(queue.retired(), 0u);
  queue.complete(queue.slot(3));
  EXPECT_EQ(queue.retired(), 4u) << "unsignaled requests before a completed one have run, those behind it not";
}

TEST_F(WorkQueueTest, FullUntilSomethingCompletes) {
  for (int i = 0; i < 8; ++i) post(true);
  EXPECT_FALSE(queue.has_room());
  queue.complete(queue.slot(0));
  EXPECT_TRUE(queue.has_room());
  post(true);
  EXPECT_FALSE(queue.has_room());
}

TEST_F(WorkQueueTest, PollersThatFinishOutOfOrderLoseNothing) {
  for (int i = 0; i < 8; ++i) post(true);
  // Two threads polled 2 and 5; the one with 5 noted it first, so the hint ends at the older one.
  queue.complete(queue.slot(5));
  queue.complete(queue.slot(2));
  EXPECT_EQ(queue.retired(), 6u);
  EXPECT_TRUE(queue.has_room());
  for (int i = 0; i < 3; ++i) post(true);
  EXPECT_EQ(queue.retired(), 6u) << "a slot used again is not done";
  while (queue.head < 6 + 8) post(true);
  EXPECT_FALSE(queue.has_room()) << "what completed last was posted again";
}

TEST_F(WorkQueueTest, SlotsKeepTheirAddressesAndRoomForInlineData) {
  SendSlot* first = &queue.slot(0);
  char* inline_data = reinterpret_cast<char*>(first->sge + queue.max_sge());
  EXPECT_LE(inline_data + queue.max_inline(), reinterpret_cast<char*>(&queue.slot(1)));
  EXPECT_EQ(&queue.slot(8), first);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
}

TEST(Opcodes, WhichOnesConsumeAReceive) {
  EXPECT_TRUE(consumes_receive(IBV_WR_SEND));
  EXPECT_TRUE(consumes_receive(IBV_WR_SEND_WITH_IMM));
  EXPECT_TRUE(consumes_receive(IBV_WR_RDMA_WRITE_WITH_IMM));
  EXPECT_TRUE(consumes_receive(IBV_WR_SEND_WITH_INV));
  EXPECT_FALSE(consumes_receive(IBV_WR_RDMA_WRITE));
  EXPECT_FALSE(consumes_receive(IBV_WR_RDMA_READ));
  EXPECT_FALSE(consumes_receive(IBV_WR_ATOMIC_FETCH_AND_ADD));
}

}  // namespace
}  // namespace shadowib
