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
  ModifyLog log;
};

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

}  // namespace
}  // namespace shadowib
