// CLCs that messages ask for: a message of another cluster waits until this member's cluster has a CLC. The agent's
// thread, except note_held_message() (agent.h).
#pragma once

#include "hooks/agent/agent.h"
#include "shadowib/base/json_writer.h"
#include "shadowib/base/status.h"

namespace shadowib {

// How long until there may be something to do; -1: no message waits.
int forced_clc_wait_ms();
// If a message waits: starts the command for the cluster's CLC, unless one is under way. After --hold seconds without
// a CLC the messages are let through.
void start_forced_clc();
// Before CLC 1: the program has posted a message to another cluster, which leaves after it.
bool waits_for_first_clc();
// A CLC has ended, and how for this member.
void note_clc(bool committed, const Status& status);
// Members of "cluster" in a member's answer: how long messages have waited, and why there is no CLC.
void describe_forced_clc(JsonWriter& writer);
void forget_forced_clc();

}  // namespace shadowib
