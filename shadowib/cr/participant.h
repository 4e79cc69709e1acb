// The shim's part in checkpoints: implements hooks/agent.h's Participant over the shadow objects.
#pragma once

#include "hooks/agent.h"

namespace shadowib {

// The process's one participant. Never destroyed.
Participant* verbs_participant();

// Its parts, one file each.
Status settle_queues(const SettleContext& context);  // settle.cc
void note_frontier();  // settle.cc: nothing moves any more; takes what came last and what a restart is to know
Status rebuild_objects(const JobInfo& job, Exchange* exchange);  // rebuild.cc
void describe_objects(std::string* json);                        // describe.cc

// Has `step` called in each restart before members look each other up: what else of this process stands in the
// exchange is published again there. One, registered for good.
using RestartStep = Status (*)();
void before_rebuilding(RestartStep step);

}  // namespace shadowib
