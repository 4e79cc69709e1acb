// Signals that the program did not ask for, on backends where only a completion tells that a request has run
// (BackendOps::needs_signals). Every request gets one; polls swallow those that are ours. So at any moment the log
// says of each request whether it has run, and no fence has to be posted at a checkpoint.
#pragma once

#include "shadowib/objects/queue_pair.h"

namespace shadowib {

// Makes room for the forced completions of a queue pair that has its logs, and has it force them. If the completion
// queue cannot be made larger it stays as it is, and says so. A checkpoint is then refused while some of its requests
// are not known to have run. Caller holds the registry's lock.
void begin_forcing_signals(ShadowQp& qp);
// The room is given back. Caller holds the registry's lock.
void end_forcing_signals(ShadowQp& qp);

// At a restart, before the objects are made again: what each completion queue needs beyond the program's entries on
// this backend, and who forces signals.
void plan_forced_signals();
// The device has no completion queue that large: nobody forces signals on it.
void give_up_forcing(ShadowCq& cq);

}  // namespace shadowib
