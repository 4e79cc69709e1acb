// The state of queues as the backend tells it: what has run, and what has completed. Threads are stopped.
#pragma once

#include "shadowib/objects/queue_pair.h"

namespace shadowib {

// Takes all completions and events out of the backend's queues.
void poll_everything();
// Notes the queue pair's state as the backend has it.
void note_state(ShadowQp& qp);
// Nothing moves any more: takes what came last, and what a restart is to know.
void note_frontier();

}  // namespace shadowib
