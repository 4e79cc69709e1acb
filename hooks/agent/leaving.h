// A member's end: it says that it leaves in an orderly way, or is told to end at once. For the agent's thread.
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// Writes it into the record of the lock, and publishes it.
void tell_of_the_end();

// Ends the process by SIGKILL if a supervisor has asked all members for that (job/protocol.h, control/abort): one has
// died, and the others are not to act on errors that they see. kIo: the exchange does not tell.
[[nodiscard]] Status end_if_told();

// For on_exit(3): destructors do not hear of the exit status.
void note_exit_status(int status, void*);

}  // namespace shadowib
