// Which queue pairs spare messages a forced signal, and the fences that takes (objects/fence.h).
#pragma once

#include "shadowib/objects/queue_pair.h"

namespace shadowib {

// A queue pair of `pd` that is to be made with `init` may spare messages. If so the domain has its window. Asks an
// adapter once, by a queue pair of its own, whether fences work on it.
bool may_spare(ShadowPd& pd, const ibv_qp_init_attr& init);
// The domain goes, on this backend.
void drop_fence(ShadowPd& pd);

// A queue pair that forces signals and has room for a fence spares messages from now on: when it is made, and when
// its program lets it send again.
void begin_sparing(ShadowQp& qp);
// Before its program holds it (SQD), where no fence runs: spares no more, and waits until what was spared has run,
// 2 s at most.
void end_sparing(ShadowQp& qp);

}  // namespace shadowib
