// What the shim knows of memory windows' binds, and the keys it turns on their way.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "shadowib/datapath/datapath.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

std::uint64_t g_executed;
ibv_qp_state g_state;
int g_refuse;  // with this errno
ibv_send_wr g_posted;
std::vector<std::uint32_t> g_known_as;  // what was said of windows that were bound: their keys before
std::deque<ibv_wc> g_completions;

int keep(ibv_qp*, ibv_send_wr* wr, ibv_send_wr** bad) {
  g_posted = *wr;
  for (const ibv_send_wr* at = wr; at != nullptr; at = at->next)
    if (at->opcode == IBV_WR_BIND_MW) g_known_as.push_back(at->bind_mw.mw->rkey);
  if (g_refuse != 0) *bad = wr;
  return g_refuse;
}

class WindowTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kVirtual = 0x11223300, kReal = 0x99887700;

  void SetUp() override {
    g_backend = {};
    g_backend.sq_executed = [](ibv_qp*) { return g_executed; };
    g_backend.query_qp = [](ibv_qp*, ibv_qp_attr* attr, int, ibv_qp_init_attr*) {
      attr->qp_state = g_state;
      return 0;
    };
    g_backend.poll_cq = [](ibv_cq*, int count, ibv_wc* wc) {
      if (g_completions.empty() || count == 0) return 0;
      *wc = g_completions.front();
      g_completions.pop_front();
      return 1;
    };
    g_executed = 0;
    g_refuse = 0;
    g_state = IBV_QPS_RTS;
    g_completions.clear();
    g_known_as.clear();
    qp.context = context.get();
    qp.real = &real_qp;
    qp.qp_num = {77};
    qp.real_post_send = keep;
    qp.turn_sends();
    ASSERT_TRUE(qp.send.create(8, 1, 0, false));
    ASSERT_TRUE(qp.receive.create(8, 1, 0, true));
    qp.receive.belongs_to(qp.qp_num);
    mr.real = &real_mr;
    real_mr.lkey = 5;
    real_mw.rkey = kReal;
    mw.mw.type = IBV_MW_TYPE_2;
    mw.mw.rkey = kVirtual;
    mw.real = &real_mw;
    context->windows.note_used();
    context->windows.insert(mw);
    cq.cq.context = &context->program();
    cq.look_at_each();
  }

  int post(ibv_wr_opcode opcode, std::uint32_t tag) {
    ibv_send_wr wr{}, *bad = nullptr;
    wr.opcode = opcode;
    if (opcode == IBV_WR_BIND_MW)
      wr.bind_mw = {&mw.mw, kVirtual | tag, {&mr.mr, 4096, 100, IBV_ACCESS_REMOTE_WRITE}};
    else
      wr.invalidate_rkey = kVirtual | tag;
    return post_send(&qp.qp.qp_base, &wr, &bad);
  }
  bool bound() {
    context->windows.settle(mw);
    return mw.bound.mr != nullptr;
  }

  std::unique_ptr<ShadowContext> context = std::make_unique<ShadowContext>();
  ibv_qp real_qp{};
  ibv_mr real_mr{};
  ibv_mw real_mw{};
  ShadowQp qp;
  ShadowMr mr;
  ShadowMw mw;
  ShadowCq cq{};
};

TEST_F(WindowTest, ABindGoesDownByRealNames) {
  ASSERT_EQ(post(IBV_WR_BIND_MW, 7), 0);
  EXPECT_EQ(g_posted.bind_mw.mw, &real_mw);
  EXPECT_EQ(g_posted.bind_mw.rkey, kReal | 7);
  EXPECT_EQ(g_posted.bind_mw.bind_info.mr, &real_mr);
  EXPECT_EQ(g_posted.bind_mw.bind_info.length, 100u);
  EXPECT_EQ(qp.send.slot(0).wr.bind_mw.mw, &mw.mw) << "the log keeps the program's";
  ASSERT_EQ(post(IBV_WR_LOCAL_INV, 7), 0);
  EXPECT_EQ(g_posted.invalidate_rkey, kReal | 7);
  ibv_send_wr wr{}, *bad;
  wr.opcode = IBV_WR_LOCAL_INV;
  wr.invalidate_rkey = kReal | 7;  // nobody's, as the program knows keys
  ASSERT_EQ(post_send(&qp.qp.qp_base, &wr, &bad), 0);
  EXPECT_EQ(g_posted.invalidate_rkey, 0u);
}

TEST_F(WindowTest, AWindowIsBoundByWhatHasRun) {
  ASSERT_EQ(post(IBV_WR_BIND_MW, 1), 0);
  ASSERT_EQ(post(IBV_WR_LOCAL_INV, 1), 0);
  ASSERT_EQ(post(IBV_WR_BIND_MW, 2), 0);
  EXPECT_FALSE(bound());
  EXPECT_TRUE(context->windows.uses(mr));
  g_executed = 1;
  EXPECT_TRUE(bound());
  EXPECT_EQ(mw.key.value, kVirtual | 1);
  EXPECT_EQ(mw.bound_by, &qp);
  g_executed = 2;
  EXPECT_FALSE(bound());
  EXPECT_TRUE(context->windows.is_changing(mw));
  g_executed = 3;
  EXPECT_TRUE(bound());
  EXPECT_EQ(mw.key.value, kVirtual | 2);
  EXPECT_FALSE(context->windows.is_changing(mw));
  EXPECT_TRUE(context->windows.uses(mr));
  context->windows.leave(qp);
  EXPECT_FALSE(bound());
  EXPECT_FALSE(context->windows.uses(mr));
}

// Some devices look for it in the real ibv_mw (Linux' rxe).
TEST_F(WindowTest, ABindSaysByWhichKeyTheWindowIsKnownThen) {
  using Keys = std::vector<std::uint32_t>;
  ASSERT_EQ(post(IBV_WR_BIND_MW, 1), 0);
  ASSERT_EQ(post(IBV_WR_LOCAL_INV, 1), 0);
  ASSERT_EQ(post(IBV_WR_BIND_MW, 2), 0);
  EXPECT_EQ(g_known_as, (Keys{kReal, kReal | 1}));
  g_executed = 1;
  ASSERT_EQ(post(IBV_WR_LOCAL_INV, 2), 0);
  ASSERT_EQ(post(IBV_WR_BIND_MW, 3), 0);
  EXPECT_EQ(g_known_as.back(), kReal | 2);
  // As a rebuild posts again what had not run: the second bind, behind the invalidation, and the third.
  g_known_as.clear();
  qp.frontier = 1;
  ASSERT_EQ(repost_sends(qp, 1), 0);
  EXPECT_EQ(g_known_as, (Keys{kReal | 1, kReal | 2}));
  // What is flushed leaves the device's as it is.
  g_state = IBV_QPS_ERR;
  EXPECT_FALSE(context->windows.is_changing(mw));
  ASSERT_EQ(post(IBV_WR_BIND_MW, 4), 0);
  EXPECT_EQ(g_known_as.back(), kReal | 1);
}

TEST_F(WindowTest, AListOfBindsGoesDownOneByOne) {
  ibv_send_wr first{}, second{}, *bad = nullptr;
  first.opcode = second.opcode = IBV_WR_BIND_MW;
  first.bind_mw = {&mw.mw, kVirtual | 1, {&mr.mr, 4096, 100, IBV_ACCESS_REMOTE_WRITE}};
  second.bind_mw = {&mw.mw, kVirtual | 2, {&mr.mr, 4096, 100, IBV_ACCESS_REMOTE_WRITE}};
  first.next = &second;
  ASSERT_EQ(post_send(&qp.qp.qp_base, &first, &bad), 0);
  EXPECT_EQ(g_known_as, (std::vector<std::uint32_t>{kReal, kReal | 1}));
}

TEST_F(WindowTest, WhatIsRefusedOrFlushedChangesNothing) {
  g_refuse = ENOMEM;
  EXPECT_EQ(post(IBV_WR_BIND_MW, 1), ENOMEM);
  g_executed = 1;
  EXPECT_FALSE(bound());
  EXPECT_FALSE(context->windows.uses(mr));
  g_executed = g_refuse = 0;
  ASSERT_EQ(post(IBV_WR_BIND_MW, 2), 0);
  EXPECT_TRUE(context->windows.is_changing(mw));
  g_state = IBV_QPS_ERR;
  EXPECT_FALSE(context->windows.is_changing(mw));
  EXPECT_FALSE(bound());
  EXPECT_FALSE(context->windows.uses(mr));
}

// By Linux' rxe with another flag. After a restart polls see it by themselves.
TEST_F(WindowTest, APeersInvalidationIsNamedAsTheProgramKnowsIt) {
  ShadowCq restarted;
  restarted.cq.context = &context->program();
  for (ShadowCq* polled : {&cq, &restarted}) {
    const bool turns = polled == &restarted;
    ASSERT_EQ(post(IBV_WR_BIND_MW, 9), 0);
    ++g_executed;
    for (const std::uint32_t tag : {8u, 9u}) {  // 8: of an earlier bind, read late
      EXPECT_TRUE(bound());
      RecvSlot& slot = qp.receive.slot(0);
      slot.pend(turns ? SlotHeader::kApart : SlotHeader::kPlain);
      ibv_wc wc{};
      wc.wr_id = reinterpret_cast<std::uint64_t>(static_cast<SlotHeader*>(&slot));
      wc.wc_flags = tag == 8 ? IBV_WC_WITH_INV : IBV_WC_IP_CSUM_OK;
      wc.invalidated_rkey = kReal | tag;
      g_completions.push_back(wc);
      ASSERT_EQ((turns ? poll_cq_turning : poll_cq)(&polled->cq, 1, &wc), 1);
      EXPECT_EQ(wc.invalidated_rkey, kVirtual | tag);
      EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_WITH_INV));
      EXPECT_EQ(wc.qp_num, 77u);
    }
    EXPECT_FALSE(bound());
  }
}

}  // namespace
}  // namespace shadowib
