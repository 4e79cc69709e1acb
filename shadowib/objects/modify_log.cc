#include "shadowib/objects/modify_log.h"

namespace shadowib {

void remember(ModifyLog* log, const ibv_qp_attr& attr, int mask) {
  mask &= ~IBV_QP_CUR_STATE;
  if ((mask & IBV_QP_STATE) && attr.qp_state == IBV_QPS_RESET) {
    log->clear();
    return;
  }
  for (RecordedModify& old : *log)
    if (old.mask == mask && (!(mask & IBV_QP_STATE) || old.attr.qp_state == attr.qp_state)) {
      old.attr = attr;
      return;
    }
  log->push_back({attr, mask});
}

}  // namespace shadowib
