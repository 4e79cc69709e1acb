// The stop signal is never blocked by the program's masks and never waited for.
#pragma once

#include <signal.h>

namespace shadowib {

// `set`, or its copy without the stop signal if it is in there. Null stays null.
const sigset_t* without_stop_signal(const sigset_t* set, sigset_t* copy);

}  // namespace shadowib
