// The gates of clusters that went back. They keep the order in which this member and others send again what those
// have forgotten. docs/internals/federation.md has the rule, job/recovery.h the keys.
//
// For the agent's thread. The state lies in memory that images hold.
#pragma once

#include <vector>

#include "hooks/job/recovery.h"

namespace shadowib {

// That cluster goes back: nothing leaves for its next incarnation until all members have said what they send it
// again. Before the participant lets go of the cluster.
void shut_gate(unsigned cluster);
// For a member that begins, or comes back, by a line or after it: the clusters that went back before. The participant
// hears of it from tell_gates().
void shut_gates_of(const std::vector<RecoveryPlan>& plans, unsigned own);
void tell_gates();
// Says what is left here, hears what is left elsewhere, and tells the participant. To be called while gates_wait_ms()
// says so.
void look_at_gates();
int gates_wait_ms();  // -1: all gates are open
// Whether a cluster that went back still has to get something of this member, or may: it must not end before.
bool must_send_again();
void forget_gates();
void gates_reset_after_fork();

}  // namespace shadowib
