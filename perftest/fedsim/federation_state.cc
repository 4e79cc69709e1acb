#include "perftest/fedsim/federation_state.h"

#include <algorithm>

namespace shadowib::fedsim {

using federation::ClcRecord;
using federation::PerCluster;
using federation::RunningCluster;

FederationState::FederationState(unsigned clusters, std::vector<unsigned> nodes)
    : members_(clusters), flows_(std::size_t{clusters} * clusters), nodes_(std::move(nodes)) {
  for (unsigned i = 0; i < clusters; ++i) {
    members_[i].running = RunningCluster{i, 0, PerCluster(clusters), PerCluster(clusters)};
    for (unsigned j = 0; j < clusters; ++j) flow(i, j).from = i, flow(i, j).to = j;
  }
}

std::vector<federation::ClusterHistory> FederationState::histories(const std::vector<unsigned>& failed) const {
  std::vector<federation::ClusterHistory> all;
  for (const SimulatedCluster& member : members_) {
    federation::ClusterHistory& history = all.emplace_back();
    for (const StoredClc& clc : member.kept) history.kept.push_back(clc.record);
    if (std::find(failed.begin(), failed.end(), member.running.index) == failed.end())
      history.running = member.running;
  }
  return all;
}

void FederationState::store(unsigned cluster, const ClcRecord& record, Time now) {
  StoredClc clc{record, now, {}, {}};
  for (unsigned peer = 0; peer < clusters(); ++peer) {
    clc.posted.push_back(flow(cluster, peer).posted.size());
    clc.delivered.push_back(flow(peer, cluster).delivered.size());
  }
  members_[cluster].kept.push_back(std::move(clc));
}

void FederationState::go_back(unsigned cluster, std::size_t record, const PerCluster& sns,
                              const PerCluster& incarnations) {
  SimulatedCluster& member = members_[cluster];
  member.kept.resize(record + 1);
  const StoredClc& clc = member.kept.back();
  federation::go_back(&member.running, clc.record, sns, incarnations);
  for (unsigned peer = 0; peer < clusters(); ++peer) {
    flow(cluster, peer).posted.resize(clc.posted[peer]);
    flow(peer, cluster).delivered.resize(clc.delivered[peer]);
  }
}

std::uint64_t FederationState::reach(const federation::RecoveryLine& line, const PerCluster& sns) {
  PerCluster incarnations = members_[0].running.incarnations;
  for (unsigned i = 0; i < clusters(); ++i)
    if (!line.clusters[i].stays) ++incarnations[i];
  for (unsigned i = 0; i < clusters(); ++i) {
    SimulatedCluster& member = members_[i];
    ++member.round;
    member.stopped = false;
    member.held.clear();
    if (line.clusters[i].stays) {
      member.running.incarnations = incarnations;
    } else {
      member.queued.clear();
      go_back(i, line.clusters[i].record, sns, incarnations);
    }
  }
  std::uint64_t resent = 0;
  for (Flow& flow : flows_) {
    flow.held = false;
    if (flow.from == flow.to || (line.clusters[flow.from].stays && line.clusters[flow.to].stays)) continue;
    ++flow.epoch;
    flow.arrived = flow.delivered.size();
    for (FlowMessage& message : flow.posted) message.stamp.incarnation = incarnations[flow.from];
    resent += flow.posted.size() - std::min(flow.posted.size(), flow.delivered.size());
  }
  return resent;
}

void FederationState::drop(const federation::ClcCollection& collection) {
  for (SimulatedCluster& member : members_) {
    std::erase_if(member.kept,
                  [&](const StoredClc& clc) { return clc.record.sn < collection.oldest[member.running.index]; });
    if (member.kept.empty()) continue;
    for (unsigned peer = 0; peer < clusters(); ++peer) {
      Flow& in = flow(peer, member.running.index);
      in.logged = std::max(in.logged, member.kept.front().delivered[peer]);
    }
  }
}

std::size_t FederationState::logged(unsigned cluster) const {
  std::size_t count = 0;
  for (unsigned peer = 0; peer < clusters(); ++peer)
    if (peer != cluster) count += flow(cluster, peer).posted.size() - flow(cluster, peer).logged;
  return count;
}

std::size_t FederationState::most_logged_by_node(unsigned cluster) const {
  std::vector<std::size_t> of(nodes_[cluster]);
  for (unsigned peer = 0; peer < clusters(); ++peer) {
    const Flow& out = flow(cluster, peer);
    for (std::size_t i = out.logged; i < out.posted.size(); ++i) ++of[out.posted[i].node];
  }
  return *std::max_element(of.begin(), of.end());
}

const char* FederationState::wrong() const {
  for (const Flow& flow : flows_)
    if (const char* what = flow.wrong()) return what;
  return nullptr;
}

}  // namespace shadowib::fedsim
