// Checkpoints that members start by themselves: every SHADOWIB_INTERVAL seconds, and when a signal asks for one
// (request_signals.h). The agent's thread.
#pragma once

namespace shadowib {

// A process has become a member.
void begin_own_checkpoints();
// How long until there may be something to start; -1: nothing to wait for.
int own_checkpoint_wait_ms();
// Starts the command for what is due.
void start_own_checkpoint();
// After a restart: what was asked for has been done, or was meant for who ran then.
void forget_signalled_requests();

}  // namespace shadowib
