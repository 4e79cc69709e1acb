// The command's side of a recovery. Clusters of a federation go back to their own checkpoints (CLCs) in the job's
// epoch. Other clusters run on. docs/internals/federation.md has the protocol, job/recovery.h the keys.
//
// Here the clusters are found, ended and told; the caller starts their members again. For commands; in one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "hooks/command/federation_view.h"
#include "hooks/federation/recovery_judge.h"
#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/members.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/status.h"

namespace shadowib {

// A cluster that goes back.
struct RecoveredCluster {
  std::string name;
  unsigned index = 0;
  federation::Sn sn = 0;  // of the CLC that it goes to
  SetManifest manifest;   // of that CLC's set
  double lost_s = 0;      // since it was committed
  bool lives = false;     // a member of it does, and has ports, locks and memory
};

struct RecoveryOptions {
  std::string directory, job;
  std::string exchange;               // URI
  std::vector<std::string> clusters;  // that count as failed; none: those of which a member has died
  bool fenced = false;                // a person vouches that members which do not end are gone
  int timeout_ms = 60000;             // until the line is published
  // The clusters that are about to go back: the caller checks their sets. Nothing has been changed so far.
  std::function<Status(const std::vector<RecoveredCluster>&)> check;
};

class Recovery {
 public:
  explicit Recovery(RecoveryOptions options);
  ~Recovery();  // gives up its locks; a line that is not reached binds the next recovery
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  // Finds out who would go back, and judges it. Nothing is changed. The errors are:
  //   `kNotFound`: no such job or cluster, no clusters, or one would have to go back behind its oldest CLC.
  //   `kBusy`: no cluster has failed; or a restart, a recovery or a checkpoint is under way.
  //   `kRefused`: a cluster that goes back was connected to one that does not, or at its CLC to any. The text says
  //   so. `kTimeout`: a member of another cluster lives and does not answer.
  Status prepare();
  // Ends what is left of the clusters, tells the others, and publishes the line. After prepare(), with its errors,
  // and `kRefused`: a member does not end.
  Status begin();
  // Whether all members that come back run. The first time they do the line is reached, and locks are given up.
  // So it is if all were about to run, and the rest of them has ended since: died().
  Status watch(bool* all_run);

  // After watch() has told that all run. Living members that still have to send something again to a cluster that
  // went back, with what is left, in their own words: another one each time something has run. "": one that has not
  // said.
  Status read_gates(std::map<std::uint32_t, std::string>* left) const;

  // After prepare(); may have grown after begin().
  const std::vector<RecoveredCluster>& clusters() const { return back_; }
  const FederationView& federation() const { return federation_; }
  // After begin().
  std::uint64_t number() const { return plan_.number; }
  std::uint32_t generation() const { return plan_.generation; }
  const std::string& epoch() const { return view_.epoch; }
  std::size_t members() const;  // how many come back
  std::string cluster_of(std::uint32_t member) const;
  // After watch() has told that all run: members that ended before they did. Their clusters have failed again.
  const std::set<std::uint32_t>& died() const { return died_; }

 private:
  Status take_locks();
  Status take_turns();
  Status look();
  Status judge_silence(const std::vector<MemberStatus>& members) const;
  void find_failed();
  Status find_line();
  Status add_cluster(const ViewedCluster& cluster, federation::Sn sn);
  federation::RecoveryFacts facts() const;
  Status claim_number();
  Status decide_what_is_left();
  Status tell();
  Status await_ends();
  Status publish_line();
  Status tidy();
  Status list_not_running(std::set<std::uint32_t>* members);

  const RecoveryOptions options_;
  JobView view_;
  Deadline deadline_ = Deadline::in_ms(0);
  std::vector<MemberStatus> members_;
  FederationView federation_;
  std::vector<federation::ClusterHistory> histories_;
  federation::RecoveryLine line_;
  std::set<unsigned> failed_, told_;  // clusters; told_: whose members were told to end
  std::vector<RecoveredCluster> back_;
  IncarnationWord word_;
  RecoveryPlan plan_;
  std::set<std::uint32_t> died_;
  int recovery_lock_ = -1, renewing_lock_ = -1;
  std::vector<int> turns_;  // by cluster; -1: given up
};

}  // namespace shadowib
