// The member's part in recoveries of its federation (docs/internals/federation.md): it hears which incarnations live,
// and it tells to which clusters it connects (agent.h).
//
// For the agent's thread, except where said.
#pragma once

namespace shadowib {

// Takes the latest word of a recovery, if there is a new one. Connections to dead incarnations are shut, and what is
// held of them is dropped. Does not return if this process's own incarnation is over: the process ends.
void hear_incarnations();

// In a restored process of a new epoch, whose exchange knows of no connection yet: each is told again.
void forget_wired();

}  // namespace shadowib
