#include "shadowib/objects/modify_log.h"

namespace shadowib {
namespace {

void copy_attributes(const ibv_qp_attr& from, int mask, ibv_qp_attr* to) {
  if (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) to->en_sqd_async_notify = from.en_sqd_async_notify;
  if (mask & IBV_QP_ACCESS_FLAGS) to->qp_access_flags = from.qp_access_flags;
  if (mask & IBV_QP_PKEY_INDEX) to->pkey_index = from.pkey_index;
  if (mask & IBV_QP_PORT) to->port_num = from.port_num;
  if (mask & IBV_QP_QKEY) to->qkey = from.qkey;
  if (mask & IBV_QP_AV) to->ah_attr = from.ah_attr;
  if (mask & IBV_QP_PATH_MTU) to->path_mtu = from.path_mtu;
  if (mask & IBV_QP_TIMEOUT) to->timeout = from.timeout;
  if (mask & IBV_QP_RETRY_CNT) to->retry_cnt = from.retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) to->rnr_retry = from.rnr_retry;
  if (mask & IBV_QP_RQ_PSN) to->rq_psn = from.rq_psn;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) to->max_rd_atomic = from.max_rd_atomic;
  if (mask & IBV_QP_ALT_PATH) {
    to->alt_ah_attr = from.alt_ah_attr;
    to->alt_pkey_index = from.alt_pkey_index;
    to->alt_port_num = from.alt_port_num;
    to->alt_timeout = from.alt_timeout;
  }
  if (mask & IBV_QP_MIN_RNR_TIMER) to->min_rnr_timer = from.min_rnr_timer;
  if (mask & IBV_QP_SQ_PSN) to->sq_psn = from.sq_psn;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) to->max_dest_rd_atomic = from.max_dest_rd_atomic;
  if (mask & IBV_QP_PATH_MIG_STATE) to->path_mig_state = from.path_mig_state;
  if (mask & IBV_QP_CAP) to->cap = from.cap;
  if (mask & IBV_QP_DEST_QPN) to->dest_qp_num = from.dest_qp_num;
  if (mask & IBV_QP_RATE_LIMIT) to->rate_limit = from.rate_limit;
}

bool enters(const RecordedModify& record, ibv_qp_state state) {
  return (record.mask & IBV_QP_STATE) != 0 && record.attr.qp_state == state;
}

}  // namespace

void remember(ModifyLog* log, const ibv_qp_attr& attr, int mask) {
  mask &= ~IBV_QP_CUR_STATE;
  if (mask & IBV_QP_STATE) {
    if (attr.qp_state == IBV_QPS_RESET) {
      log->clear();
      return;
    }
    std::erase_if(*log, [&](const RecordedModify& old) {
      return (old.mask & IBV_QP_STATE) != 0 && old.attr.qp_state > attr.qp_state;
    });
  }
  int carried = 0;
  for (RecordedModify& old : *log) {
    copy_attributes(attr, mask & old.mask, &old.attr);
    carried |= old.mask;
    if ((mask & IBV_QP_STATE) && enters(old, attr.qp_state)) mask &= ~IBV_QP_STATE;
  }
  // The first way into a state needs all that came with it; a change only what is not on the way yet.
  if (!(mask & IBV_QP_STATE)) mask &= ~carried;
  if (mask != 0) log->push_back({attr, mask});
}

}  // namespace shadowib
