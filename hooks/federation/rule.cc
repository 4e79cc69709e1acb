#include "hooks/federation/rule.h"

#include <algorithm>
#include <limits>

namespace shadowib::federation {

void PerCluster::raise(const PerCluster& other) {
  for (unsigned i = 0; i < clusters; ++i) of[i] = std::max(of[i], other.of[i]);
}

void PerCluster::cut(const PerCluster& other) {
  for (unsigned i = 0; i < clusters; ++i) of[i] = std::min(of[i], other.of[i]);
}

bool PerCluster::covers(const PerCluster& other) const {
  for (unsigned i = 0; i < clusters; ++i)
    if (other.of[i] > of[i]) return false;
  return true;
}

namespace {

// What a delivery raises D to.
PerCluster taken(Policy policy, const RunningCluster& receiver, const Stamp& stamp) {
  PerCluster entries(receiver.depends.clusters);
  if (policy == Policy::kVector) entries.raise(stamp.vector);
  entries[stamp.cluster] = stamp.sn;
  entries[receiver.index] = 0;  // what a cluster has of itself is no dependency
  return entries;
}

}  // namespace

Arrival judge(Policy policy, const RunningCluster& receiver, const Stamp& stamp) {
  if (stamp.cluster >= receiver.depends.clusters || stamp.cluster == receiver.index || stamp.sn == 0)
    return Arrival::kDead;
  if (stamp.incarnation != receiver.incarnations[stamp.cluster]) return Arrival::kDead;
  bool held = false;
  switch (policy) {
    case Policy::kPaper:
      held = stamp.sn > receiver.depends[stamp.cluster];
      break;
    case Policy::kVector:
      held = !receiver.depends.covers(taken(policy, receiver, stamp));
      break;
    case Policy::kIndex:
      held = stamp.sn > receiver.sn;
      break;
    case Policy::kNone:
      held = receiver.sn == 0;  // there must be a state to go back to
      break;
  }
  return held ? Arrival::kHold : Arrival::kDeliver;
}

Stamp stamp_of(const RunningCluster& sender) {
  Stamp stamp{sender.index, sender.incarnations[sender.index], sender.sn, sender.depends};
  stamp.vector[sender.index] = sender.sn;
  return stamp;
}

void note_delivered(Policy policy, RunningCluster* receiver, const Stamp& stamp) {
  receiver->depends.raise(taken(policy, *receiver, stamp));
}

Status next_clc(Policy policy, const RunningCluster& cluster, std::span<const Stamp> held, ClcRecord* record) {
  if (cluster.sn == std::numeric_limits<Sn>::max())
    return Status::of(Code::kRefused, 0, "cluster %u has used up its numbers of checkpoints; restart the whole job",
                      cluster.index);
  *record = {cluster.index, cluster.sn + 1, cluster.incarnations[cluster.index], cluster.depends, cluster.depends};
  for (const Stamp& stamp : held) {
    if (policy == Policy::kIndex) record->sn = std::max(record->sn, stamp.sn);
    record->after.raise(taken(policy, cluster, stamp));
    record->forced = true;
  }
  return {};
}

void commit(RunningCluster* cluster, const ClcRecord& record) {
  cluster->sn = record.sn;
  cluster->depends = record.after;
}

void go_back(RunningCluster* cluster, const ClcRecord& record, const PerCluster& sns,
             const PerCluster& incarnations) {
  cluster->sn = record.sn;
  cluster->depends = record.after;
  cluster->depends.cut(sns);
  cluster->incarnations = incarnations;
}

}  // namespace shadowib::federation
