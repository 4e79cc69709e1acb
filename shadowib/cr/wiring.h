// Connections between clusters of a federation, as a process makes them.
#pragma once

#include "shadowib/base/status.h"
#include "shadowib/objects/queue_pair.h"

namespace shadowib {

// Before a queue pair or an address handle leads to `remote`: if that is a process of another cluster, the job hears
// of it (note_wired() in hooks/agent/agent.h). Asks the exchange once for each address. Does nothing in a process of
// no cluster. kIo: the exchange cannot be asked; then nothing may be connected. Any thread that a checkpoint cannot
// stop.
[[nodiscard]] Status note_wiring(const RemoteEnd& remote);

}  // namespace shadowib
