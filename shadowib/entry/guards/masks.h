// The signals that are ours, the stop signal and those that ask for checkpoints, are never blocked by the program's
// masks and never waited for.
#pragma once

#include <signal.h>

namespace shadowib {

// `set`, or its copy without our signals if one is in there. Null stays null.
const sigset_t* without_our_signals(const sigset_t* set, sigset_t* copy);

}  // namespace shadowib
