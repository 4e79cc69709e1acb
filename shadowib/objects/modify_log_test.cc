#include "shadowib/objects/modify_log.h"

#include <gtest/gtest.h>

namespace shadowib {
namespace {

constexpr int kToInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kToRtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kToRts =
    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

struct ModifyLogTest : testing::Test {
  void enter(ibv_qp_state state, int mask = IBV_QP_STATE, ibv_qp_attr attr = {}) {
    attr.qp_state = state;
    remember(&log, attr, mask);
  }
  void reach_rts() {
    enter(IBV_QPS_INIT, kToInit);
    enter(IBV_QPS_RTR, kToRtr);
    enter(IBV_QPS_RTS, kToRts);
  }
  // The states a replay enters, in order.
  std::vector<ibv_qp_state> states() const {
    std::vector<ibv_qp_state> found;
    for (const RecordedModify& m : log)
      if (m.mask & IBV_QP_STATE) found.push_back(m.attr.qp_state);
    return found;
  }
  ModifyLog log;
};
using States = std::vector<ibv_qp_state>;

TEST_F(ModifyLogTest, ResetForgetsEverything) {
  reach_rts();
  EXPECT_EQ(log.size(), 3u);
  enter(IBV_QPS_RESET);
  EXPECT_TRUE(log.empty());
}

TEST_F(ModifyLogTest, TheStateAChangeBeganInIsNotKept) {
  reach_rts();
  ibv_qp_attr from{};
  from.cur_qp_state = IBV_QPS_SQD;
  enter(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_CUR_STATE, from);
  enter(IBV_QPS_SQD, IBV_QP_STATE | IBV_QP_CUR_STATE, from);
  for (const RecordedModify& m : log) EXPECT_EQ(m.mask & IBV_QP_CUR_STATE, 0);
  EXPECT_EQ(log.back().attr.qp_state, IBV_QPS_SQD);
}

TEST_F(ModifyLogTest, NoRecordUndoesAChange) {
  ibv_qp_attr attr{};
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  enter(IBV_QPS_INIT, kToInit);
  remember(&log, attr, IBV_QP_ACCESS_FLAGS);
  enter(IBV_QPS_RTR, kToRtr | IBV_QP_ACCESS_FLAGS, attr);
  enter(IBV_QPS_RTS, kToRts);
  attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  remember(&log, attr, IBV_QP_ACCESS_FLAGS);
  EXPECT_EQ(states(), (States{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}));
  for (const RecordedModify& m : log)
    if (m.mask & IBV_QP_ACCESS_FLAGS) {
      EXPECT_EQ(m.attr.qp_access_flags, unsigned{IBV_ACCESS_REMOTE_WRITE});
    }
}

TEST_F(ModifyLogTest, WhatWasChangedInSqdStaysAndSqdDoesNot) {
  reach_rts();
  ibv_qp_attr attr{};
  for (int round = 1; round <= 3; ++round) {
    enter(IBV_QPS_SQD, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY);
    EXPECT_EQ(states(), (States{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD}));
    attr.timeout = static_cast<std::uint8_t>(10 + round);
    attr.ah_attr.dlid = static_cast<std::uint16_t>(100 + round);
    remember(&log, attr, IBV_QP_TIMEOUT | IBV_QP_AV);
    attr.min_rnr_timer = static_cast<std::uint8_t>(20 + round);
    enter(IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER, attr);
    EXPECT_EQ(states(), (States{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}));
    EXPECT_EQ(log[1].attr.ah_attr.dlid, 100 + round);
    EXPECT_EQ(log[1].attr.min_rnr_timer, 20 + round);
    EXPECT_EQ(log[2].attr.timeout, 10 + round);
  }
  EXPECT_EQ(log[1].mask, kToRtr);
  EXPECT_EQ(log[2].mask, kToRts);
}

TEST_F(ModifyLogTest, WhatNoStateCarriesIsKeptOnce) {
  reach_rts();
  ibv_qp_attr attr{};
  for (int round = 1; round <= 3; ++round) {
    enter(IBV_QPS_SQD);
    attr.alt_port_num = static_cast<std::uint8_t>(round);
    attr.rnr_retry = static_cast<std::uint8_t>(round);
    remember(&log, attr, IBV_QP_ALT_PATH | IBV_QP_RNR_RETRY);
    enter(IBV_QPS_RTS);
  }
  ASSERT_EQ(log.size(), 4u);
  EXPECT_EQ(log[2].attr.rnr_retry, 3);
  EXPECT_EQ(log[3].mask, IBV_QP_ALT_PATH);
  EXPECT_EQ(log[3].attr.alt_port_num, 3);
}

TEST_F(ModifyLogTest, AnErrorKeepsTheWayThere) {
  reach_rts();
  enter(IBV_QPS_SQD);
  enter(IBV_QPS_ERR);
  enter(IBV_QPS_ERR);
  EXPECT_EQ(states(), (States{IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_ERR}));
}

}  // namespace
}  // namespace shadowib
