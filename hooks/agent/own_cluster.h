// The cluster of a federation that this member is in (docs/internals/federation.md). A member that is in none runs
// nothing of this but is_in_cluster().
//
// For the agent's thread, except where said. The state lies in memory that images hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hooks/federation/rule.h"
#include "hooks/job/cluster.h"
#include "hooks/job/job_info.h"
#include "shadowib/base/json_writer.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

struct OwnCluster {
  char name[33] = {};  // "": none
  federation::Policy policy = federation::Policy::kPaper;
  double hold_s = 10;  // of a refused CLC; then messages are delivered without one
  federation::RunningCluster running;
  std::uint64_t stops = 0;      // how often a checkpoint has stopped the program
  std::uint64_t delivered_early = 0;  // messages that waited for hold_s in vain
};

// Any thread.
bool is_in_cluster();
const OwnCluster& own_cluster();

// Reads SHADOWIB_CLUSTER, SHADOWIB_CLUSTER_POLICY and SHADOWIB_CLUSTER_HOLD. kUsage names the variable.
Status read_cluster_choice();

// On joining, while no other process does: claims the cluster's index, and takes SN and D over from its last CLC.
// `members`: names of the member keys so far. *waits: a checkpoint of the cluster is under way, and this process joins
// after it. kUsage: other members are in no cluster, or have another policy; there are more than 32 clusters; or the
// exchange is a launcher's.
Status enter_cluster(const JobInfo& info, Exchange& exchange, const std::vector<std::string>& members, bool* waits);

// In a process restarted from a set of the whole job: every cluster begins anew, of the generation's incarnation.
void begin_cluster_anew(std::uint32_t generation);

// A member, as `shadowib status` shows it.
void describe_own_cluster(JsonWriter& writer);

}  // namespace shadowib
