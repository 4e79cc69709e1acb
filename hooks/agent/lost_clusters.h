// Clusters whose processes are not there any more. If one of them has died, its cluster can go back, and requests to
// it wait for as long as that takes. If all have ended in an orderly way, the requests fail as anywhere.
//
// The agent's thread, except note_lost_cluster() (agent.h).
#pragma once

#include <cstdint>

#include "shadowib/base/json_writer.h"

namespace shadowib {

int lost_clusters_wait_ms();  // 0: requests have run out of retries, and nobody has judged them; -1: none
// `now_ns`: of CLOCK_MONOTONIC.
void judge_lost_clusters(std::int64_t now_ns);
// The cluster goes back.
void note_return(unsigned cluster);
// "waits_for" in a member's answer: the clusters, by index, that have failed while requests wait for them.
void describe_lost_clusters(JsonWriter& writer);
void forget_lost_clusters();

}  // namespace shadowib
