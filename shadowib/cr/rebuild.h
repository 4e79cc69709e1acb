// Parts of a rebuild that have files of their own; called by rebuild.cc in its order.
#pragma once

#include "shadowib/base/status.h"
#include "shadowib/objects/registry.h"

namespace shadowib {

// Makes memory windows again, and binds those of type 1. Regions exist, nothing is published yet.
Status rebuild_windows(Registry& r);
// Binds windows of type 2 through their queue pairs. These are connected, their peers have posted nothing yet, and
// completion queues are not armed, so the program sees nothing of it.
Status rebind_windows(Registry& r);

// Replays the recorded modifications with from <= target state < to. Changes without a state follow the last state.
Status replay(ShadowQp& qp, ibv_qp_state from, ibv_qp_state to);

}  // namespace shadowib
