#include "hooks/federation/line.h"

namespace shadowib::federation {
namespace {

Status corrupt(unsigned cluster, Sn sn, const char* what) {
  return Status::of(Code::kCorrupt, 0, "CLC %u of cluster %u %s", sn, cluster, what);
}

Status check_record(const ClcRecord& record, const ClcRecord* earlier, unsigned cluster, unsigned clusters) {
  if (record.claim == ClcRecord::Claim::kUndecided)
    return Status::of(Code::kBusy, 0, "CLC %u of cluster %u is neither committed nor void; claim it as void first",
                      record.sn, cluster);
  if (record.claim == ClcRecord::Claim::kVoid)
    return corrupt(cluster, record.sn, "is void, and no state to go back to");
  if (record.cluster != cluster) return corrupt(cluster, record.sn, "is of another cluster");
  if (record.sn == 0) return corrupt(cluster, record.sn, "has number 0, which means that there is none");
  if (record.before.clusters != clusters || record.after.clusters != clusters)
    return corrupt(cluster, record.sn, "knows another number of clusters");
  if (!record.after.covers(record.before)) return corrupt(cluster, record.sn, "has dependencies that became less");
  if (record.before[cluster] != 0 || record.after[cluster] != 0)
    return corrupt(cluster, record.sn, "depends on its own cluster");
  if (earlier && earlier->sn >= record.sn) return corrupt(cluster, record.sn, "is not above the one before it");
  if (earlier && !record.before.covers(earlier->before))
    return corrupt(cluster, record.sn, "depends on less than the one before it");
  return {};
}

Status check_running(const RunningCluster& running, const ClusterHistory& history, unsigned cluster,
                     unsigned clusters) {
  if (running.index != cluster || running.depends.clusters != clusters)
    return Status::of(Code::kCorrupt, 0, "members of cluster %u answer for another one", cluster);
  const Sn last = history.kept.empty() ? 0 : history.kept.back().sn;
  if (running.sn != last)
    return Status::of(Code::kCorrupt, 0, "members of cluster %u are at SN %u, and its last CLC is %u", cluster,
                      running.sn, last);
  if (!history.kept.empty() && !running.depends.covers(history.kept.back().before))
    return Status::of(Code::kCorrupt, 0, "members of cluster %u depend on less than their last CLC", cluster);
  return {};
}

// Where a cluster is: kept.size() says that it stays, less that it goes to that record.
class Positions {
 public:
  explicit Positions(const std::vector<ClusterHistory>& histories) : histories_(histories) {}

  Status start();
  Status settle();
  RecoveryLine line() const;

 private:
  bool stays(unsigned i) const { return at_[i] == histories_[i].kept.size(); }
  Sn sn(unsigned i) const { return histories_[i].kept[at_[i]].sn; }
  // D of the state that the cluster would have.
  const PerCluster& depends(unsigned i) const {
    return stays(i) ? histories_[i].running->depends : histories_[i].kept[at_[i]].before;
  }
  bool must_go_back(unsigned j) const;
  Status lost(unsigned i) const {
    return Status::of(Code::kNotFound, 0, "cluster %u would have to go back behind its oldest CLC, which is %u", i,
                      histories_[i].kept.empty() ? 0 : histories_[i].kept.front().sn);
  }

  const std::vector<ClusterHistory>& histories_;
  std::vector<std::size_t> at_;
};

Status Positions::start() {
  for (unsigned i = 0; i < histories_.size(); ++i) {
    const ClusterHistory& history = histories_[i];
    std::size_t at = history.kept.size();
    if (history.bound)
      while (at > 0 && (at == history.kept.size() || history.kept[at].sn > *history.bound)) --at;
    if (!history.running && at == history.kept.size()) {
      if (history.kept.empty()) return lost(i);
      --at;
    }
    if (history.bound && (history.kept.empty() || history.kept[at].sn != *history.bound))
      return Status::of(Code::kCorrupt, 0, "CLC %u of cluster %u is missing, which a recovery has published",
                        *history.bound, i);
    at_.push_back(at);
  }
  return {};
}

bool Positions::must_go_back(unsigned j) const {
  for (unsigned i = 0; i < histories_.size(); ++i)
    if (i != j && !stays(i) && depends(j)[i] >= sn(i)) return true;
  return false;
}

Status Positions::settle() {
  for (bool changed = true; changed;) {
    changed = false;
    for (unsigned j = 0; j < histories_.size(); ++j)
      while (must_go_back(j)) {
        if (at_[j] == 0) return lost(j);
        --at_[j];
        changed = true;
      }
  }
  return {};
}

RecoveryLine Positions::line() const {
  RecoveryLine found;
  for (unsigned i = 0; i < histories_.size(); ++i)
    found.clusters.push_back(stays(i) ? RecoveryLine::Place{.stays = true}
                                      : RecoveryLine::Place{false, sn(i), at_[i]});
  return found;
}

}  // namespace

PerCluster RecoveryLine::sns(const std::vector<ClusterHistory>& histories) const {
  PerCluster result(static_cast<unsigned>(clusters.size()));
  for (unsigned i = 0; i < clusters.size(); ++i)
    result[i] = clusters[i].stays ? histories[i].running->sn : clusters[i].sn;
  return result;
}

Status check_histories(const std::vector<ClusterHistory>& histories) {
  if (histories.empty() || histories.size() > kMaxClusters)
    return Status::of(Code::kUsage, 0, "a federation has 1 to %u clusters, and these are %zu", kMaxClusters,
                      histories.size());
  const unsigned clusters = static_cast<unsigned>(histories.size());
  for (unsigned i = 0; i < clusters; ++i) {
    const ClcRecord* earlier = nullptr;
    for (const ClcRecord& record : histories[i].kept) {
      SHADOWIB_TRY(check_record(record, earlier, i, clusters));
      earlier = &record;
    }
    if (histories[i].running) SHADOWIB_TRY(check_running(*histories[i].running, histories[i], i, clusters));
  }
  return {};
}

Status find_line(const std::vector<ClusterHistory>& histories, RecoveryLine* line) {
  SHADOWIB_TRY(check_histories(histories));
  Positions positions(histories);
  SHADOWIB_TRY(positions.start());
  SHADOWIB_TRY(positions.settle());
  *line = positions.line();
  return {};
}

}  // namespace shadowib::federation
