// The verbs' names of the operations of a plan.
#pragma once

#include <infiniband/verbs.h>

#include "storm/ledger.h"

namespace storm {

ibv_wr_opcode opcode_of(Kind kind);
// The opcode of its completion at the sender.
ibv_wc_opcode completion_of(Kind kind);

}  // namespace storm
