// Sets of one cluster of a federation (CLCs): what they are good for, and which of them may go.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hooks/command/federation_view.h"
#include "hooks/imager/checkpoint_set.h"
#include "shadowib/cli/common.h"

namespace shadowib::cli {

// kRefused for a CLC that is named as a set: `restart --job` finds the right one (cli/recover.h).
Status judge_restart_of_clc(const SetManifest& manifest);
// One line for a person who has just made one.
std::string note_on_clc(const SetCluster& cluster, const std::string& job);

// The job's clusters with the answers of living members, for lines and collections. Looks again while a commit is
// under way. kNotFound: there is no such job, or it has no clusters.
Status look_at_federation(const Common& common, const std::string& job, int timeout_ms, FederationView* federation);

// The job whose sets have this owner: "demo" of "demo" and, if it has a cluster B, of "demo.B".
std::string job_of_owner(const std::string& directory, const std::string& owner);

// The lock of recoveries, if nobody has it. While this object has it, no cluster begins to go back: a recovery waits.
class RecoveryLock {
 public:
  RecoveryLock(const std::string& directory, const std::string& job);
  ~RecoveryLock();
  RecoveryLock(const RecoveryLock&) = delete;
  RecoveryLock& operator=(const RecoveryLock&) = delete;
  bool is_taken() const { return is_taken_; }  // by somebody else

 private:
  int lock_;
  bool is_taken_;
};

struct ClcsToRemove {
  std::vector<std::string> paths;
  std::string why;                     // not empty: all committed ones stay, because
  std::unique_ptr<RecoveryLock> lock;  // to be kept until the sets are removed
};
// The job's CLCs that may go: void ones, and those that no failure needs. Source: federation::find_collection().
// None goes while clusters are being recovered, or if some have gone back since this function looked. `keep`: each
// cluster's N newest stay anyway. Older ones of earlier lives of the job go as well; without `keep` they stay. 0 of a
// dead job: all go. If nothing can be found out about the job, nothing goes, and `why` tells.
Status clcs_to_remove(const Common& common, const std::string& job, std::optional<unsigned> keep, bool dry_run,
                      ClcsToRemove* found);

}  // namespace shadowib::cli
