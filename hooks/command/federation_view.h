// A federation as commands see it: its clusters, what was decided over their CLCs, and what living members say.
// Internal to hooks/ and the command.
#pragma once

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hooks/federation/line.h"
#include "hooks/job/decisions.h"
#include "hooks/job/members.h"
#include "hooks/job/recovery.h"

namespace shadowib {

struct ViewedClc {
  Decision decision;
  bool kept = false;  // its set is there
};

struct ViewedCluster {
  std::string name;
  unsigned index = 0;
  std::vector<ViewedClc> clcs;  // committed in this epoch and not undone by a recovery, by SN
  std::vector<Decision> voids;
  std::vector<Decision> undone;  // committed, and behind what the cluster has gone back to since
  // From its members' answers. None: it has no living member, one of them has died, or one does not answer. A cluster
  // whose members have all ended in an orderly way counts as running if it has no CLC, or was never wired to others.
  std::optional<federation::RunningCluster> running;
  std::size_t members = 0;  // that live
  std::size_t held = 0;     // connections with a message that waits for a CLC
  double held_s = 0;        // the longest wait
  std::uint64_t delivered_early = 0, stops = 0;
  std::uint64_t log_bytes = 0;   // the largest log of a member's messages to other clusters
  std::set<unsigned> waits_for;  // clusters that have failed while requests to them wait
  std::string refusal;           // of the latest CLC that a message asked for; "": none

  std::size_t kept() const;
  std::size_t forced() const;  // of all that were committed in this epoch
};

struct FederationView {
  std::string policy;
  std::vector<ViewedCluster> clusters;  // by index
  std::vector<RecoveryPlan> plans;      // of the epoch, by number
  federation::PerCluster told;          // incarnations, by the latest word of a recovery
  std::set<std::pair<unsigned, unsigned>> wired;
  // All members tell of their connections to other clusters. Else clusters that are not in `wired` may be wired.
  bool tells_wiring = false;

  bool exists() const { return !clusters.empty(); }
  const ViewedCluster* find(const std::string& name) const;  // null: there is none
  // A process of one has been connected to a process of the other in this epoch, or that is not known.
  bool are_wired(unsigned a, unsigned b) const { return !tells_wiring || wired.contains(std::minmax(a, b)); }
  bool is_wired(unsigned cluster) const;  // to any
  // The line that was published and not reached yet; null: there is none.
  const RecoveryPlan* unreached() const;
  std::vector<std::string> names() const;
};

// Reads clusters and decisions. A job without clusters has an empty view. kCorrupt, kVersion name the key.
[[nodiscard]] Status read_federation(const JobView& view, FederationView* federation);

// Adds what members have answered (query_status()).
void add_answers(const std::vector<MemberStatus>& members, FederationView* federation);

// For find_line() and find_collection(): the CLCs whose sets are there. Clusters without `running` have failed. A
// line that is not reached binds.
std::vector<federation::ClusterHistory> histories_of(const FederationView& federation);
// The SN of each cluster: of its last CLC that was committed in this epoch.
federation::PerCluster sns_of(const FederationView& federation);
// With an entry for each cluster that there can be.
federation::PerCluster widened(const federation::PerCluster& numbers);
// D of a running cluster, as members tell of it, with an entry for each cluster, and none above what the cluster can
// have sent: a member may lie. Under policy `vector` it has entries of clusters that it was never wired to.
federation::PerCluster bounded(const FederationView& federation, const federation::RunningCluster& running);
// The held messages that clusters can have sent: of those that there are, none above the cluster's last CLC. A member
// that lies about its SN would use up numbers.
std::vector<federation::Stamp> possible(const FederationView& federation, const std::vector<federation::Stamp>& held);
federation::PerCluster incarnations_of(const FederationView& federation);

// kNotFound names the clusters that there are.
[[nodiscard]] Status no_such_cluster(const FederationView& federation, const std::string& job,
                                     const std::string& name);

}  // namespace shadowib
