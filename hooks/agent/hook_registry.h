// The program's functions that run before and after checkpoints (shadowib.h).
#pragma once

namespace shadowib {

// Runs those of an event in their order. On the agent's thread.
void run_hooks(int event);
// A forked child has none. Its lock may have been held in the parent.
void hooks_reset_after_fork();

}  // namespace shadowib
