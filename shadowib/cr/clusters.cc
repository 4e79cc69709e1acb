#include "shadowib/cr/clusters.h"

#include <string.h>

#include <algorithm>

#include "hooks/agent/agent.h"
#include "shadowib/objects/backend.h"
#include "shadowib/objects/border.h"

namespace shadowib {
namespace {

static_assert(kMaxBackendClusters == federation::kMaxClusters);

void on_held(std::uint32_t, std::uint32_t) { note_held_message(); }
void on_lost(std::uint32_t cluster) { note_lost_cluster(cluster); }
void on_gate(std::uint32_t cluster, std::uint64_t earliest, std::uint64_t awaits) {
  note_gate_moved(cluster, earliest, awaits);
}

federation::PerCluster all_clusters(const std::uint32_t (&numbers)[kMaxBackendClusters]) {
  federation::PerCluster result(kMaxBackendClusters);
  std::copy(std::begin(numbers), std::end(numbers), result.of.begin());
  return result;
}

void on_traced(const BorderEvent* event) {
  static_assert(static_cast<unsigned>(TracedMessage::Kind::kDeliver) == BorderEvent::kDeliver);
  trace_message({static_cast<TracedMessage::Kind>(event->kind),
                 event->sn,
                 event->incarnation,
                 event->peer,
                 event->flow,
                 event->number,
                 {event->vector, event->entries}});
}

}  // namespace

Status tell_border(const federation::RunningCluster& cluster, federation::Policy policy) {
  ClusterState state{};
  state.index = cluster.index;
  state.sn = cluster.sn;
  state.policy = static_cast<std::uint32_t>(policy);
  std::copy(cluster.depends.of.begin(), cluster.depends.of.end(), state.depends);
  std::copy(cluster.incarnations.of.begin(), cluster.incarnations.of.end(), state.incarnations);
  set_needs_clc_handler(on_held);
  set_cluster_lost_handler(on_lost);
  set_log_fills_handler(note_log_filling);
  set_gate_moved_handler(on_gate);
  if (is_traced()) trace_borders(on_traced);
  const int error = tell_cluster(state);
  if (error == 0) return {};
  return Status::of(Code::kRefused, error,
                    "backend %s has no borders between clusters (%s): use --backend ib2tcp, or leave out --cluster",
                    g_backend.name != nullptr ? g_backend.name : "none", ::strerror(error));
}

Status tell_of_gone_cluster(unsigned cluster, federation::Incarnation incarnation) {
  const int error = tell_cluster_gone(cluster, incarnation);
  if (error == 0) return {};
  return Status::of(Code::kRefused, error, "backend %s cannot shut connections to incarnation %u of cluster %u: %s",
                    g_backend.name != nullptr ? g_backend.name : "none", incarnation, cluster, ::strerror(error));
}

void read_border_facts(federation::PerCluster* delivered, federation::PerCluster* trimmed) {
  const BorderFacts facts = border_facts();
  *delivered = all_clusters(facts.delivered);
  *trimmed = all_clusters(facts.trimmed);
}

void read_held(std::vector<federation::Stamp>* held) {
  std::vector<HeldStamp> stamps(held_stamps(nullptr, 0));
  // More may come meanwhile, unless the border is frozen: they wait for the next look.
  const std::size_t there = held_stamps(stamps.data(), stamps.size());
  held->clear();
  for (std::size_t i = 0; i < std::min(there, stamps.size()); ++i)
    held->push_back({stamps[i].cluster, stamps[i].incarnation, stamps[i].sn, all_clusters(stamps[i].vector)});
}

}  // namespace shadowib
