// Extended verbs over a backend that keeps what is posted: builders and field-wise polling.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "hooks/threads/stop.h"
#include "shadowib/datapath/datapath.h"
#include "shadowib/datapath/extended_poll.h"
#include "shadowib/datapath/send_builder.h"
#include "shadowib/objects/backend.h"

namespace {
bool g_watches_heap = false;
int g_taken_outside = 0;  // of the heap, by a thread that may be stopped
}  // namespace

void* operator new(std::size_t size) {
  if (g_watches_heap && shadowib::t_depth.depth == 0) ++g_taken_outside;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace shadowib {

namespace {

struct Posted {
  ibv_send_wr wr;
  std::string bytes;  // of its elements
};
std::vector<Posted> g_posted;
std::deque<ibv_wc> g_completions;

int keep(ibv_qp*, ibv_send_wr* wr, ibv_send_wr**) {
  for (; wr != nullptr; wr = wr->next) {
    Posted& posted = g_posted.emplace_back();
    posted.wr = *wr;
    for (int i = 0; i < wr->num_sge; ++i)
      posted.bytes.append(reinterpret_cast<const char*>(wr->sg_list[i].addr), wr->sg_list[i].length);
  }
  return 0;
}

class BuilderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    g_posted.clear();
    g_backend = {};
    qp.context = context.get();
    qp.qp_num = {77};
    qp.real_post_send = keep;
    qp.real_cap = {4, 4, 2, 1, 16};
    ASSERT_TRUE(qp.send.create(4, 2, 16, false));
    qp.builder = std::make_shared<SendBuilder>(qp.real_cap);
    offer_builders(qp, SendBuilder::kOperations);
    ex = &qp.qp;
  }
  ibv_sge sge(std::size_t at, std::uint32_t length) const {
    return {reinterpret_cast<std::uint64_t>(memory) + at, length, 5};
  }
  void add_send(std::uint64_t id, unsigned flags = IBV_SEND_SIGNALED) {
    ex->wr_id = id;
    ex->wr_flags = flags;
    ibv_wr_send(ex);
  }

  std::unique_ptr<ShadowContext> context = std::make_unique<ShadowContext>();
  ShadowQp qp;
  ibv_qp_ex* ex = nullptr;
  char memory[64] = "abcdefghijklmnopqrstuvwxyz";
};

// A thread that is stopped in the heap holds its lock, and the agent waits for it.
TEST_F(BuilderTest, BuildsWithMemoryThatIsTakenInside) {
  ibv_wr_start(ex);
  g_watches_heap = true;
  for (std::uint64_t id = 0; id < 40; ++id) {
    const ibv_sge list[] = {sge(0, 4), sge(4, 4)};
    add_send(id);
    ibv_wr_set_sge_list(ex, 2, list);
    add_send(id);
    ibv_wr_set_inline_data(ex, memory, 16);
  }
  g_watches_heap = false;
  ibv_wr_abort(ex);
  EXPECT_EQ(g_taken_outside, 0);
}

TEST_F(BuilderTest, WhatWasBuiltIsPostedInOrder) {
  ibv_wr_start(ex);
  add_send(1);
  ibv_wr_set_sge(ex, 5, sge(0, 3).addr, 3);
  ex->wr_id = 2;
  ex->wr_flags = IBV_SEND_FENCE;
  ibv_wr_rdma_write_imm(ex, 9, 1000, 0x1234);
  const ibv_sge list[] = {sge(3, 2), sge(10, 1)};
  ibv_wr_set_sge_list(ex, 2, list);
  ex->wr_id = 3;
  ibv_wr_atomic_cmp_swp(ex, 8, 2000, 7, 6);
  ibv_wr_set_sge(ex, 5, sge(0, 8).addr, 8);
  ex->wr_id = 4;
  ibv_wr_send_imm(ex, 0x5678);
  EXPECT_TRUE(g_posted.empty());
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  ASSERT_EQ(g_posted.size(), 4u);
  EXPECT_EQ(g_posted[0].wr.opcode, IBV_WR_SEND);
  EXPECT_EQ(g_posted[0].bytes, "abc");
  EXPECT_EQ(g_posted[0].wr.send_flags, static_cast<unsigned>(IBV_SEND_SIGNALED));
  EXPECT_EQ(g_posted[1].wr.opcode, IBV_WR_RDMA_WRITE_WITH_IMM);
  EXPECT_EQ(g_posted[1].bytes, "dek");
  EXPECT_EQ(g_posted[1].wr.imm_data, 0x1234u);
  EXPECT_EQ(g_posted[1].wr.wr.rdma.remote_addr, 1000u);
  EXPECT_EQ(g_posted[1].wr.wr.rdma.rkey, 9u);
  EXPECT_EQ(g_posted[1].wr.send_flags, static_cast<unsigned>(IBV_SEND_FENCE));
  EXPECT_EQ(g_posted[2].wr.opcode, IBV_WR_ATOMIC_CMP_AND_SWP);
  EXPECT_EQ(g_posted[2].wr.wr.atomic.compare_add, 7u);
  EXPECT_EQ(g_posted[2].wr.wr.atomic.swap, 6u);
  EXPECT_EQ(g_posted[3].wr.num_sge, 0);
  EXPECT_EQ(g_posted[3].wr.imm_data, 0x5678u);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(qp.send.slot(i).user_wr_id, i + 1);
}

TEST_F(BuilderTest, BindsAndInvalidations) {
  ibv_mw window{};
  ibv_mr region{};
  const ibv_mw_bind_info info{&region, 4096, 100, IBV_ACCESS_REMOTE_READ};
  ibv_wr_start(ex);
  ex->wr_id = 1;
  ibv_wr_bind_mw(ex, &window, 0x1234, &info);
  ex->wr_id = 2;
  ibv_wr_local_inv(ex, 0x5678);
  ex->wr_id = 3;
  ibv_wr_send_inv(ex, 0x9abc);
  ibv_wr_set_sge(ex, 5, sge(0, 3).addr, 3);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  ASSERT_EQ(g_posted.size(), 3u);
  EXPECT_EQ(g_posted[0].wr.opcode, IBV_WR_BIND_MW);
  EXPECT_EQ(g_posted[0].wr.bind_mw.mw, &window);
  EXPECT_EQ(g_posted[0].wr.bind_mw.rkey, 0x1234u);
  EXPECT_EQ(g_posted[0].wr.bind_mw.bind_info.length, 100u);
  EXPECT_EQ(g_posted[1].wr.opcode, IBV_WR_LOCAL_INV);
  EXPECT_EQ(g_posted[1].wr.invalidate_rkey, 0x5678u);
  EXPECT_EQ(g_posted[2].wr.opcode, IBV_WR_SEND_WITH_INV);
  EXPECT_EQ(g_posted[2].wr.invalidate_rkey, 0x9abcu);
  EXPECT_EQ(g_posted[2].bytes, "abc");
}

TEST_F(BuilderTest, InlineDataIsCopiedWhenItIsSet) {
  ibv_wr_start(ex);
  add_send(1);
  ibv_wr_set_inline_data(ex, memory, 4);
  add_send(2);
  const ibv_data_buf buffers[] = {{memory + 4, 2}, {memory + 20, 6}};
  ibv_wr_set_inline_data_list(ex, 2, buffers);
  std::memset(memory, 'x', sizeof(memory));
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  ASSERT_EQ(g_posted.size(), 2u);
  EXPECT_EQ(g_posted[0].bytes, "abcd");
  EXPECT_EQ(g_posted[1].bytes, "efuvwxyz");
  EXPECT_NE(g_posted[1].wr.send_flags & IBV_SEND_INLINE, 0u);
}

TEST_F(BuilderTest, ABatchThatDoesNotFitIsNotPostedAtAll) {
  for (int round = 0; round < 2; ++round) {
    ibv_wr_start(ex);
    for (std::uint64_t id = 0; id < 3; ++id) add_send(id);
    EXPECT_EQ(ibv_wr_complete(ex), round == 0 ? 0 : ENOMEM);
    EXPECT_EQ(g_posted.size(), 3u);
  }
  ibv_wr_start(ex);
  add_send(3);
  EXPECT_EQ(ibv_wr_complete(ex), 0);
  EXPECT_EQ(g_posted.size(), 4u);
}

TEST_F(BuilderTest, ABatchOfOneIsRefusedWhenTheQueueIsFull) {
  for (std::uint64_t id = 0; id < 5; ++id) {
    ibv_wr_start(ex);
    add_send(id);
    ibv_wr_set_sge(ex, 5, sge(id, 1).addr, 1);
    EXPECT_EQ(ibv_wr_complete(ex), id < 4 ? 0 : ENOMEM);
  }
  ASSERT_EQ(g_posted.size(), 4u);
  EXPECT_EQ(g_posted[3].bytes, "d");
  qp.real_post_send = [](ibv_qp*, ibv_send_wr* wr, ibv_send_wr** bad) {
    *bad = wr;
    return EINVAL;
  };
  qp.send.slot(0).complete(IBV_WC_SUCCESS);
  ibv_wr_start(ex);
  add_send(5);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  EXPECT_EQ(qp.send.head, 4u);
}

// Room is looked for and taken in one step: another thread that posts meanwhile leaves a batch whole or out.
TEST_F(BuilderTest, ABatchIsWholeBesideAnotherThreadsPosts) {
  for (int round = 0; round < 2000; ++round) {
    qp.send.clear();
    g_posted.clear();
    std::atomic<bool> go{false};
    std::thread other([&] {
      while (!go) cpu_pause();
      ibv_sge one = sge(0, 1);
      for (std::uint64_t id = 100; id < 102; ++id) {
        ibv_send_wr wr{}, *bad;
        wr.wr_id = id;
        wr.sg_list = &one;
        wr.num_sge = 1;
        (void)post_send(&qp.qp.qp_base, &wr, &bad);
      }
    });
    ibv_wr_start(ex);
    for (std::uint64_t id = 0; id < 3; ++id) add_send(id);
    go = true;
    const int rc = ibv_wr_complete(ex);
    other.join();
    std::size_t of_batch = 0;
    for (std::uint64_t s = 0; s < qp.send.head; ++s) of_batch += qp.send.slot(s).user_wr_id < 100;
    ASSERT_EQ(of_batch, rc == 0 ? 3u : 0u) << round;
    ASSERT_EQ(g_posted.size(), qp.send.head);
  }
}

TEST_F(BuilderTest, AMistakeSpoilsItsBatchOnly) {
  const ibv_sge list[3] = {sge(0, 1), sge(1, 1), sge(2, 1)};
  ibv_wr_start(ex);
  add_send(1);
  add_send(2);
  ibv_wr_set_sge_list(ex, 3, list);
  add_send(3);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  ibv_wr_start(ex);
  add_send(4);
  ibv_wr_set_inline_data(ex, memory, 17);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  ibv_wr_start(ex);
  add_send(5);
  ibv_wr_abort(ex);
  EXPECT_TRUE(g_posted.empty());
  ibv_wr_start(ex);
  EXPECT_EQ(ibv_wr_complete(ex), 0);
  ibv_wr_start(ex);
  add_send(6);
  EXPECT_EQ(ibv_wr_complete(ex), 0);
  ASSERT_EQ(g_posted.size(), 1u);
  EXPECT_EQ(qp.send.slot(0).user_wr_id, 6u);
}

class ExtendedPollTest : public ::testing::Test {
 protected:
  void SetUp() override {
    g_completions.clear();
    g_backend = {};
    g_backend.poll_cq = [](ibv_cq*, int count, ibv_wc* wc) {
      int n = 0;
      for (; n < count && !g_completions.empty(); g_completions.pop_front()) wc[n++] = g_completions.front();
      return n;
    };
    ASSERT_TRUE(slots.create(8, 1, 0, false));
    slots.belongs_to({77});
    offer_extended_poll(cq, false);
  }
  void complete(std::uint64_t wr_id) {
    SendSlot& slot = slots.slot(slots.head++);
    slot.user_wr_id = wr_id;
    slot.pend(SlotHeader::kApart);
    ibv_wc wc{};
    wc.wr_id = reinterpret_cast<std::uint64_t>(static_cast<SlotHeader*>(&slot));
    wc.opcode = IBV_WC_RDMA_READ;
    wc.status = wr_id == 2 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS;
    wc.vendor_err = 3;
    wc.byte_len = 4;
    wc.imm_data = 5;
    wc.src_qp = 6;
    wc.wc_flags = IBV_WC_WITH_IMM;
    wc.slid = 7;
    wc.sl = 8;
    wc.dlid_path_bits = 9;
    g_completions.push_back(wc);
  }
  WorkQueue<SendSlot> slots;
  ShadowCq cq{};
  ibv_poll_cq_attr attr{};
};

TEST_F(ExtendedPollTest, EveryFieldOfEachCompletionInTurn) {
  ibv_cq_ex* ex = &cq.extended;
  EXPECT_EQ(ibv_start_poll(ex, &attr), ENOENT);
  complete(1);
  complete(2);
  ASSERT_EQ(ibv_start_poll(ex, &attr), 0);
  EXPECT_EQ(ex->wr_id, 1u);
  EXPECT_EQ(ex->status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_wc_read_opcode(ex), IBV_WC_RDMA_READ);
  EXPECT_EQ(ibv_wc_read_vendor_err(ex), 3u);
  EXPECT_EQ(ibv_wc_read_byte_len(ex), 4u);
  EXPECT_EQ(ibv_wc_read_imm_data(ex), 5u);
  EXPECT_EQ(ibv_wc_read_qp_num(ex), 77u);
  EXPECT_EQ(ibv_wc_read_src_qp(ex), 6u);
  EXPECT_EQ(ibv_wc_read_wc_flags(ex), static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(ibv_wc_read_slid(ex), 7u);
  EXPECT_EQ(ibv_wc_read_sl(ex), 8u);
  EXPECT_EQ(ibv_wc_read_dlid_path_bits(ex), 9u);
  ASSERT_EQ(ibv_next_poll(ex), 0);
  EXPECT_EQ(ex->wr_id, 2u);
  EXPECT_EQ(ex->status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_next_poll(ex), ENOENT);
  complete(3);
  ibv_end_poll(ex);
  ASSERT_EQ(ibv_start_poll(ex, &attr), 0) << "what came before the end of a round is there in the next";
  EXPECT_EQ(ex->wr_id, 3u);
  ibv_end_poll(ex);
  attr.comp_mask = 1;
  EXPECT_EQ(ibv_start_poll(ex, &attr), EINVAL);
}

TEST_F(ExtendedPollTest, ASecondThreadHasItsTurnAfterTheFirst) {
  ibv_cq_ex* ex = &cq.extended;
  complete(1);
  complete(2);
  ASSERT_EQ(ibv_start_poll(ex, &attr), 0);
  std::atomic<bool> there{false}, begun{false};
  std::thread other([&] {
    there = true;
    EXPECT_EQ(ibv_start_poll(ex, &attr), 0);
    begun = true;
    EXPECT_EQ(ex->wr_id, 2u);
    ibv_end_poll(ex);
  });
  while (!there) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(ex->wr_id, 1u);
    EXPECT_FALSE(begun.load());
    std::this_thread::yield();
  }
  ibv_end_poll(ex);
  other.join();
  EXPECT_TRUE(begun.load());
}

}  // namespace
}  // namespace shadowib
