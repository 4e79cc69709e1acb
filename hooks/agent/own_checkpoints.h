// Checkpoints that members start by themselves: every SHADOWIB_INTERVAL seconds, or as often as loses the least work
// (best_interval.h), when a signal asks for one (request_signals.h), and when another cluster does. The agent's
// thread.
#pragma once

#include <cstdint>

namespace shadowib {

// A process has become a member.
void begin_own_checkpoints();
// How long until there may be something to start; -1: nothing to wait for.
int own_checkpoint_wait_ms();
// How long such a checkpoint may take.
int own_checkpoint_timeout_ms();
// Starts the command for what is due.
void start_own_checkpoint();
// A checkpoint has been committed for which the program stood so long.
void note_checkpoint_pause(std::int64_t pause_ns);
// Another cluster's log of messages to this one gets full (log_room.h): a CLC gives it room.
void note_room_request();
// Any CLC of the cluster begins its interval anew, whoever has asked for it.
void restart_interval();
// After a restart: what was asked for has been done, or was meant for who ran then.
void forget_signalled_requests();

}  // namespace shadowib
