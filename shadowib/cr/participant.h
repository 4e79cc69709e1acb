// The shim's part in checkpoints: implements hooks/agent/agent.h's Participant over the shadow objects.
#pragma once

#include "hooks/agent/agent.h"

namespace shadowib {

// The process's one participant. Never destroyed.
Participant* verbs_participant();

// Its parts, one file each.
Status settle_queues(const SettleContext& context);  // settle.cc
Status flush_placement();  // flush_placement.cc: all are settled; what adapters have taken in lies in memory then
void begin_anew_what_ran_out();  // retries.cc: threads are stopped, and all are settled
Status rebuild_objects(const JobInfo& job, Exchange* exchange);  // rebuild.cc
void describe_objects(std::string* json);                        // describe.cc
void count_objects(std::string* text);  // describe.cc: threads are stopped; "contexts=1 queue_pairs=2 ..."

// Another layer's part in checkpoints. One, registered for good.
struct Companion {
  Status (*before_rebuilding)();        // in a restart: publishes again what members may seek
  void (*describe)(std::string* json);  // appends ',"name":value' for `shadowib status`
};
void set_companion(const Companion* companion);

}  // namespace shadowib
