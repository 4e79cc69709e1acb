// The record of a CLC: what its members held, and the decision that it counts.
#include <time.h>

#include <algorithm>

#include "hooks/command/coordinator_drive.h"
#include "hooks/job/decisions.h"
#include "hooks/job/phase.h"
#include "hooks/job/protocol.h"

namespace shadowib {

// D of members that have ended. Under other policies no member delivers above the D that all know.
Status CheckpointDrive::add_left(federation::PerCluster* depends) const {
  std::vector<MemberStatus> all;
  SHADOWIB_TRY(list_members(view_, &all));
  for (const MemberStatus& member : all)
    if (member.gone && member.cluster == options_.cluster) depends->raise(widened(member.left_depends));
  return {};
}

// What members hold when the cluster has settled shares one CLC. Members' D may differ: one delivers what the others
// have not heard of (`index`, --hold). The cluster's is the greatest.
Status CheckpointDrive::join_borders() {
  if (!is_clc()) return {};
  std::map<std::uint32_t, std::string> words;
  SHADOWIB_TRY(collect("border", &words));
  // Nothing comes any more: messages so far are of clusters, and of SNs, that are there now.
  SHADOWIB_TRY(read_federation(view_, &federation_));
  // As who recovers sees it.
  federation_.tells_wiring = members_.front().meets >= kFirstTellsWiring;  // all are of one version
  federation::RunningCluster running;
  std::vector<federation::Stamp> held;
  bool first = true;
  clc_.trimmed.assign(federation::kMaxClusters, 0);
  for (const MemberStatus& member : members_) {
    Fields fields;
    BorderReport report;
    SHADOWIB_TRY(view_.decode(below("border/" + std::to_string(member.index)), words.at(member.index), &fields));
    SHADOWIB_TRY(decode_border(fields, &report));
    if (first) running = report.running;
    if (report.running.index != cluster_ || report.running.sn != running.sn ||
        !(report.running.incarnations == running.incarnations))
      return Status::of(Code::kAborted, 0, "%.150s has SN %u, and others of its cluster have SN %u; try again",
                        describe(member).c_str(), report.running.sn, running.sn);
    running.depends.raise(report.running.depends);
    held.insert(held.end(), report.held.begin(), report.held.end());
    // A member that does not tell leaves the list short: nobody knows then.
    if (first) clc_.logged_since = report.logged_since;
    clc_.logged_since.resize(std::min(clc_.logged_since.size(), report.logged_since.size()));
    for (std::size_t i = 0; i < clc_.logged_since.size(); ++i)
      clc_.logged_since[i] = std::max(clc_.logged_since[i], report.logged_since[i]);
    clc_.trimmed.resize(std::min(clc_.trimmed.size(), report.trimmed.size()));
    for (std::size_t i = 0; i < clc_.trimmed.size(); ++i)
      clc_.trimmed[i] = std::max(clc_.trimmed[i], report.trimmed[i]);
    first = false;
  }
  federation::Policy policy{};
  if (!parse_policy(federation_.policy, &policy))
    return Status::of(Code::kVersion, 0, "the clusters have policy %.40s, which this shadowib does not know",
                      federation_.policy.c_str());
  if (policy == federation::Policy::kIndex) SHADOWIB_TRY(add_left(&running.depends));
  running.depends = bounded(federation_, running);
  SHADOWIB_TRY(federation::next_clc(policy, running, possible(federation_, held), &clc_.record));
  clc_.name = options_.cluster;
  if (federation_.tells_wiring) clc_.wired.emplace();
  for (const ViewedCluster& other : federation_.clusters)
    if (clc_.wired && other.index != cluster_ && federation_.wired.contains(std::minmax(cluster_, other.index)))
      clc_.wired->push_back(other.index);
  clc_.claim = clc_key(view_.epoch, cluster_, clc_name(clc_.record.incarnation, clc_.record.sn, n_));
  return {};
}

// A CLC says which one it is; a set of a whole federation, who was in which cluster.
void CheckpointDrive::describe_clusters(SetManifest* manifest) const {
  if (is_clc()) manifest->cluster = clc_;
  if (is_clc() || !federation_.exists()) return;
  manifest->federation.policy = federation_.policy;
  for (const ViewedCluster& cluster : federation_.clusters) {
    manifest->federation.clusters.push_back({cluster.name, cluster.index, {}});
    for (const MemberStatus& member : members_)
      if (member.cluster == cluster.name) manifest->federation.clusters.back().members.push_back(member.index);
  }
}

// The set is there; now it is decided that it counts, unless a member has taken this command for dead and has decided
// that it does not.
Status CheckpointDrive::claim(const std::string& set_path) {
  if (!is_clc()) return {};
  SHADOWIB_TRY(fault_point(Phase::kRenamed));
  Decision mine, decided;
  mine.record = clc_.record;
  mine.record.claim = federation::ClcRecord::Claim::kCommitted;
  mine.set = set_name(set_owner(view_.job, options_.cluster), number_);
  mine.set_id = set_id_;
  mine.at_ms = static_cast<std::int64_t>(::time(nullptr)) * 1000;
  mine.by = "command";
  SHADOWIB_TRY(decide(*view_.exchange, view_.epoch, n_, mine, &decided));
  decision_ = encode_decision(decided);
  if (decided.record.claim == federation::ClcRecord::Claim::kCommitted) return {};
  (void)store_->remove(set_path).ok();  // gc takes what stays
  return Status::of(Code::kAborted, 0, "%.60s has given this checkpoint up before it was committed",
                    decided.by.c_str());
}

}  // namespace shadowib
