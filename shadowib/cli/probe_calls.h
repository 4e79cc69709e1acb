// Tries the system calls of a checkpoint in a new program, which inherits the seccomp filters of the agent that
// starts it.
#pragma once

namespace shadowib::cli {

// Prints the name of each system call a checkpoint needs, makes the call with arguments that it refuses, and prints
// "done" at the end. Where a filter ends the process, the last name tells the call. Returns the exit code.
int probe_calls();

}  // namespace shadowib::cli
