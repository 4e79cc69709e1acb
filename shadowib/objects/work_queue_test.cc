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
    slot.pend(SlotHeader::kPlain);
    ++queue.head;
    slot.wr.send_flags = signaled ? IBV_SEND_SIGNALED : 0;
    return slot;
  }
  void complete(std::uint64_t sequence, ibv_wc_status status = IBV_WC_SUCCESS) {
    queue.slot(sequence).complete(status);
  }
  WorkQueue<SendSlot> queue;
};

TEST_F(WorkQueueTest, ACompletionRetiresEverythingBeforeIt) {
  for (int i = 0; i < 5; ++i) post(i == 3);
  EXPECT_EQ(queue.retired(), 0u);
  complete(3);
  EXPECT_EQ(queue.retired(), 4u) << "unsignaled requests before a completed one have run, those behind it not";
}

TEST_F(WorkQueueTest, FullUntilSomethingCompletes) {
  for (int i = 0; i < 8; ++i) post(true);
  EXPECT_FALSE(queue.has_room());
  complete(0);
  EXPECT_TRUE(queue.has_room());
  post(true);
  EXPECT_FALSE(queue.has_room());
}

// A thread took the completions of 0 to 4 out of the backend and was held up before it had read their slots; another
// noted 5. Used again, the slots would give the first thread the wr_ids of other requests.
TEST_F(WorkQueueTest, ASlotIsKeptUntilItsOwnCompletionWasTaken) {
  for (int i = 0; i < 8; ++i) post(true);
  complete(5);
  EXPECT_EQ(queue.retired(), 6u);
  EXPECT_FALSE(queue.has_room());
  for (std::uint64_t i = 0; i < 5; ++i) complete(i);
  while (queue.head < 6 + 8) post(true);
  EXPECT_FALSE(queue.has_room());
}

TEST_F(WorkQueueTest, UnsignaledRequestsAreRetiredByALaterCompletion) {
  for (int i = 0; i < 8; ++i) post(i == 2 || i == 5);
  EXPECT_FALSE(queue.has_room());
  EXPECT_EQ(queue.retired(), 0u);
  complete(5);
  EXPECT_EQ(queue.retired(), 6u);
  EXPECT_TRUE(queue.has_room()) << "0 and 1 have run";
  EXPECT_EQ(queue.tail(), 2u) << "the completion of 2 is in another thread's hands";
  post(true);
  post(true);
  EXPECT_FALSE(queue.has_room());
  complete(2);
  while (queue.head < 6 + 8) post(true);
  EXPECT_FALSE(queue.has_room()) << "6 and 7 are not known to have run";
}

TEST_F(WorkQueueTest, AFlushTellsNothingOfUnsignaledRequestsBeforeIt) {
  for (int i = 0; i < 8; ++i) post(false);
  complete(4, IBV_WC_WR_FLUSH_ERR);
  EXPECT_FALSE(queue.has_room());
  complete(2, IBV_WC_RETRY_EXC_ERR);
  EXPECT_TRUE(queue.has_room());
  EXPECT_EQ(queue.tail(), 3u) << "3 is flushed too, and its completion was not taken";
  complete(3, IBV_WC_WR_FLUSH_ERR);
  while (queue.head < 5 + 8) post(false);
  EXPECT_FALSE(queue.has_room());
}

// A poller has taken the force back from a request that failed, and was held up before it had read the slot.
TEST_F(WorkQueueTest, AForcedSlotIsKeptUntilItsOwnCompletionWasTaken) {
  SendSlot& failed = post(true);
  failed.pend(SlotHeader::kForced);
  failed.take_force_back();
  for (int i = 1; i < 8; ++i) post(false);
  complete(4);
  EXPECT_TRUE(failed.signaled());
  EXPECT_FALSE(queue.has_room());
  EXPECT_FALSE(failed.done());
  failed.complete(IBV_WC_RETRY_EXC_ERR);
  EXPECT_FALSE(failed.signaled()) << "as the program posted it";
  EXPECT_TRUE(queue.has_room());
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
