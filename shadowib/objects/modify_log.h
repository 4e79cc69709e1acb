// What a rebuild replays to bring a new queue pair where the program has brought its own.
#pragma once

#include <infiniband/verbs.h>

#include <vector>

namespace shadowib {

// A way into a state (IBV_QP_STATE in mask), or a change of attributes within the state before it. Ids virtual.
struct RecordedModify {
  ibv_qp_attr attr;
  int mask;
};

// The shortest way to a queue pair's present state and attributes, not its history: each state on the way is entered
// once, in order, and every record that carries an attribute carries its present value, so that none undoes another.
using ModifyLog = std::vector<RecordedModify>;

// Notes a change that the backend has accepted. RESET empties the log. A state that was entered before is not entered
// again; those behind it are no longer on the way: RTS after SQD drops SQD, and what was changed in SQD stays with
// the records that carry it. Only what no record carries (an alternate path) is appended. A mask never holds
// IBV_QP_CUR_STATE: a replay passes through states of its own.
void remember(ModifyLog* log, const ibv_qp_attr& attr, int mask);

}  // namespace shadowib
