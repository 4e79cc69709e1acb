// The options of `run` that put a process into a cluster of a federation, and the job's record of its clusters.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/sharing_lock.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::cli {

struct ClusterOptions {
  std::string cluster, policy;
  double hold_s = 0;
  bool given() const { return !cluster.empty() || !policy.empty() || hold_s > 0; }
};

void add_cluster_options(Command* command, ClusterOptions* options);

// Adds the variables that stand for the options, unless they are of another job. Checks names. kUsage: --policy or
// --hold without --cluster; a name, a policy or a time that is none.
Status take_cluster_variables(const std::string& job, ClusterOptions* options);

// Before a process is started: whether it may come to the job, and the record of that. A job has either clusters, all
// of one policy, or none. `backend` becomes ib2tcp if it was auto. kUsage with what is in the way. Without --cluster
// a job that has no record of clusters is not looked at any further. Hold `lock` until prepare_job() has noted the
// process: until then nothing else shows that the record is in use.
Status join_clusters(const std::string& directory, const std::string& job, const ClusterOptions& options,
                     const std::string& exchange, std::string* backend, SharingLock* lock);

// The clusters of a job that have had a process; none: the job has none, or there is no such job.
std::set<std::string> recorded_clusters(const std::string& directory, const std::string& job);

// For a restart of the whole job, before its members are made: its clusters have the indices of the set.
Status renew_clusters(const std::string& directory, const std::string& job, Exchange& exchange,
                      const std::string& epoch, const SetFederation& federation);

// For a restart of a set without clusters.
Status forget_clusters(const std::string& directory, const std::string& job);

// Told to the process. Without a cluster the variables are removed.
void export_cluster(const ClusterOptions& options);

}  // namespace shadowib::cli
