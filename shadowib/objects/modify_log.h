// What a rebuild replays to bring a new queue pair where the program has brought its own.
#pragma once

#include <infiniband/verbs.h>

#include <vector>

namespace shadowib {

// One accepted ibv_modify_qp, ids virtual. Replayed in order by a rebuild.
struct RecordedModify {
  ibv_qp_attr attr;
  int mask;
};

using ModifyLog = std::vector<RecordedModify>;

// Notes a change that the backend has accepted. Keeps the log short: a repeated change replaces its older self; a way
// back to RESET forgets all. A mask never holds IBV_QP_CUR_STATE: a replay passes through states of its own.
void remember(ModifyLog* log, const ibv_qp_attr& attr, int mask);

}  // namespace shadowib
