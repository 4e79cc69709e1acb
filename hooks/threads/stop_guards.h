// The needs of the guards of sigaction and signal, to keep the program's use of our signal apart. Internal.
#pragma once

#include "hooks/raw/raw_signal.h"

namespace shadowib {

// Exchanges the program's own action for the stop signal, which is kept apart from our handler. Either may be null.
// Warns once when an action is set.
void stop_program_action(const KernelSigaction* action, KernelSigaction* old);

}  // namespace shadowib
