// A rebuild replays this log to bring a new queue pair to the state of the program's.
#pragma once

#include <infiniband/verbs.h>

#include <vector>

namespace shadowib {

// A way into a state (IBV_QP_STATE in mask), or a change of attributes within the state before it. Ids virtual.
struct RecordedModify {
  ibv_qp_attr attr;
  int mask;
};

// It is the shortest way to a queue pair's present state and attributes, not its history. Each state on the way is
// entered once, in order. Every record with an attribute has its present value, so none undoes another.
using ModifyLog = std::vector<RecordedModify>;

// Notes a change that the backend has accepted. RESET empties the log. A state that was entered before is not entered
// again, and the states behind it are dropped from the way. RTS after SQD drops SQD; attributes changed in SQD stay
// with the records that carry them. Only what no record carries (an alternate path) is appended. A mask never holds
// IBV_QP_CUR_STATE: a replay passes through states of its own.
void remember(ModifyLog* log, const ibv_qp_attr& attr, int mask);

}  // namespace shadowib
