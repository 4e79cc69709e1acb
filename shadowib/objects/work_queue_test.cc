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

// A poller has taken the completion of 0 and that of 7: the places between them are free as well.
TEST_F(WorkQueueTest, ThereIsRoomForManyBehindAPlaceThatIsFree) {
  for (int i = 0; i < 8; ++i) post(i == 0 || i == 7);
  complete(0);
  complete(7);
  EXPECT_TRUE(queue.has_room_for(8));
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

class SparedSlots : public WorkQueueTest {
 protected:
  void spare(int count) {
    for (; count > 0; --count) post(false).pend(SlotHeader::kSpared);
  }
  // How many more there is room for, one by one.
  int room() {
    int count = 0;
    for (; count < 100 && queue.has_room(); ++count) spare(1);
    return count;
  }
};

TEST_F(SparedSlots, AreTakenUpToTheProof) {
  spare(3);
  post(true);
  spare(4);
  EXPECT_FALSE(queue.has_room()) << "nothing says that they have run";
  complete(3);
  EXPECT_TRUE(queue.has_room_for(4));
  EXPECT_FALSE(queue.has_room_for(5));
  EXPECT_EQ(room(), 4) << "4 is not known to have run";
  EXPECT_EQ(queue.retired(), 4u) << "those that took their places have not run";
  EXPECT_EQ(queue.head, 12u);
}

TEST_F(SparedSlots, AProofTellsNothingOfACompletionThatWasNotTaken) {
  spare(1);
  post(true);
  spare(1);
  post(true);
  spare(4);
  complete(3);
  EXPECT_EQ(room(), 1) << "the completion of 1 is in another thread's hands";
  complete(1);
  EXPECT_EQ(room(), 3);
}

TEST_F(SparedSlots, AFlushProvesNothing) {
  spare(4);
  post(true);
  spare(3);
  complete(4, IBV_WC_WR_FLUSH_ERR);
  EXPECT_FALSE(queue.has_room());
  for (std::uint64_t i : {0, 1, 2, 3}) complete(i, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(room(), 5) << "each has said so itself";
}

TEST_F(SparedSlots, AProofIsOfOneLifeOfTheQueue) {
  for (int round = 0; round < 3; ++round) {
    spare(7);
    post(true);
    complete(queue.head - 1);
  }
  EXPECT_EQ(room(), 8);
  queue.clear();
  spare(8);
  EXPECT_FALSE(queue.has_room());
}

// What posts write is in as few cache lines as it can be: with many queue pairs each is in no near cache.
TEST_F(WorkQueueTest, AFewLinesHoldWhatACommonPostWrites) {
  const auto line = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) / 64; };
  SendSlot& slot = queue.slot(0);
  EXPECT_EQ(line(&slot.wr.wr.rdma.rkey), line(&slot) + 1);
  EXPECT_EQ(line(&slot.list()[0].lkey), line(&slot) + 1);
  WorkQueue<RecvSlot> receives;
  ASSERT_TRUE(receives.create(8, 1, 0, true));
  EXPECT_EQ(line(&receives.slot(1)), line(&receives.slot(0)) + 1);
  alignas(64) WorkQueue<SendSlot> aligned;
  EXPECT_EQ(line(&aligned.lock), line(&aligned.messages));
  EXPECT_EQ(line(&aligned.lock), line(&aligned.posting_bad));
}

TEST_F(WorkQueueTest, ABindHasItsWindowWhereOthersHaveTheirList) {
  EXPECT_GE(reinterpret_cast<char*>(&queue.slot(1)), reinterpret_cast<char*>(&queue.slot(0) + 1));
  WorkQueue<SendSlot> least;
  ASSERT_TRUE(least.create(2, 1, 0, false));
  EXPECT_GE(reinterpret_cast<char*>(&least.slot(1)), reinterpret_cast<char*>(&least.slot(0) + 1));
}

TEST_F(WorkQueueTest, SlotsKeepTheirAddressesAndRoomForInlineData) {
  SendSlot* first = &queue.slot(0);
  char* inline_data = reinterpret_cast<char*>(first->list() + queue.max_sge());
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
