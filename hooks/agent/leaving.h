// A member's end: it says that it leaves in an orderly way, or is told to end at once. For the agent's thread.
#pragma once

#include <string>

namespace shadowib {

// Writes it into the record of the lock, and publishes it.
void tell_of_the_end();

// Ends the process by SIGKILL if `text` (job/protocol.h, control/abort) is a supervisor's to all members: one has
// died, and the others are not to act on errors that they see.
void end_if_told(const std::string& text);

// For on_exit(3): destructors do not hear of the exit status.
void note_exit_status(int status, void*);

}  // namespace shadowib
