// A log of messages to other clusters that gets full: those clusters are asked for CLCs, behind which it is trimmed
// (docs/internals/federation.md). They take them by own_checkpoints.h. The agent's thread, except note_log_filling()
// (agent.h).
#pragma once

namespace shadowib {

// How long until there may be something to ask for; -1: the log has room.
int log_room_wait_ms();
// Asks all clusters that this process is connected to, if the log is nearly full. Once in SHADOWIB_LOG_INTERVAL.
void ask_for_log_room();
void forget_log_room();

}  // namespace shadowib
