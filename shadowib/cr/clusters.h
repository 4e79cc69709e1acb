// The cluster of this process as the agent knows it (hooks/federation/rule.h), told to the backend, and back.
#pragma once

#include <vector>

#include "hooks/federation/rule.h"
#include "shadowib/base/status.h"

namespace shadowib {

// The agent's thread. kRefused: the backend has no borders, with its name.
Status tell_border(const federation::RunningCluster& cluster, federation::Policy policy);
// That incarnation of another cluster is over. The agent's thread. kRefused: the backend has no borders, or knows no
// such cluster.
Status tell_of_gone_cluster(unsigned cluster, federation::Incarnation incarnation);
// The stamps of the messages that wait for a CLC, one for each connection.
void read_held(std::vector<federation::Stamp>* held);
// BorderFacts, with an entry for each cluster that there can be.
void read_border_facts(federation::PerCluster* delivered, federation::PerCluster* trimmed);

}  // namespace shadowib
