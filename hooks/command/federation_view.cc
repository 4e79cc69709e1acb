#include "hooks/command/federation_view.h"

#include <algorithm>
#include <cerrno>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/base/json_value.h"

namespace shadowib {
namespace {

using federation::PerCluster;

// The set is there, and it is this CLC's: a number may have come again.
bool has_set(const JobView& view, const Decision& decision) {
  SetManifest manifest;
  return read_manifest(sets_path(view.directory) + "/" + decision.set, &manifest).ok() &&
         manifest.set_id == decision.set_id;
}

Status read_clusters(const JobView& view, std::vector<ViewedCluster>* clusters) {
  std::vector<std::string> names;
  SHADOWIB_TRY(view.exchange->list(cluster_key(view.epoch, ""), &names));
  clusters->clear();
  for (const std::string& name : names) {
    Fields fields;
    bool found = false;
    SHADOWIB_TRY(view.fields("cluster/" + name, &fields, &found));
    if (!found) continue;
    ViewedCluster cluster;
    cluster.name = name;
    cluster.index = static_cast<unsigned>(field_number(fields, "index"));
    clusters->push_back(std::move(cluster));
  }
  std::sort(clusters->begin(), clusters->end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  for (std::size_t i = 0; i < clusters->size(); ++i)
    if ((*clusters)[i].index != i || i >= federation::kMaxClusters)
      return Status::of(Code::kCorrupt, 0, "job %.64s: the index of cluster %.32s is %u, and %zu was expected",
                        view.job.c_str(), (*clusters)[i].name.c_str(), (*clusters)[i].index, i);
  return {};
}

// CLCs from before a cluster joined know nothing of it.
PerCluster sized(const PerCluster& numbers, std::size_t clusters) {
  PerCluster result(static_cast<unsigned>(clusters));
  for (unsigned i = 0; i < result.clusters; ++i) result[i] = i < numbers.clusters ? numbers[i] : 0;
  return result;
}

PerCluster numbers_in(const Json& list) {
  PerCluster numbers;
  if (!list.is_array()) return numbers;
  for (const Json& entry : list)
    if (numbers.clusters < federation::kMaxClusters && entry.is_number_unsigned())
      numbers[numbers.clusters++] = entry.get<std::uint32_t>();
  return numbers;
}

std::uint64_t number_in(const Json& object, const char* name) {
  return object.contains(name) && object[name].is_number_unsigned() ? object[name].get<std::uint64_t>() : 0;
}

// D of a cluster is the greatest of its members': one may have delivered what the others have not heard of.
void add_answer(const Json& answer, ViewedCluster* cluster) {
  federation::RunningCluster running;
  running.index = cluster->index;
  running.sn = static_cast<federation::Sn>(number_in(answer, "sn"));
  running.depends = numbers_in(answer.contains("depends") ? answer["depends"] : Json());
  running.incarnations = PerCluster(federation::kMaxClusters);
  running.incarnations[cluster->index] = static_cast<federation::Incarnation>(number_in(answer, "incarnation"));
  cluster->held += number_in(answer, "held");
  cluster->held_s = std::max(cluster->held_s, static_cast<double>(number_in(answer, "held_ms")) / 1000);
  cluster->delivered_early += number_in(answer, "delivered_early");
  cluster->stops = std::max(cluster->stops, number_in(answer, "stops"));
  cluster->log_bytes = std::max(cluster->log_bytes, number_in(answer, "log_bytes"));
  const PerCluster waits_for = numbers_in(answer.contains("waits_for") ? answer["waits_for"] : Json());
  cluster->waits_for.insert(waits_for.of.begin(), waits_for.of.begin() + waits_for.clusters);
  if (answer.contains("refusal") && answer["refusal"].is_string())
    cluster->refusal = answer["refusal"].get<std::string>();
  if (!cluster->running) {
    cluster->running = running;
    return;
  }
  cluster->running->depends.raise(running.depends);
  cluster->running->incarnations.raise(running.incarnations);
  // Between the first and the last member that hears of a commit, the lesser one counts.
  cluster->running->sn = std::min(cluster->running->sn, running.sn);
}

// Its members have all ended in an orderly way, and there is no CLC of it. It has nothing to go back to and nothing
// that a failure could undo, so it stays where it is. So does one that nobody else was ever connected to.
federation::RunningCluster ended(const ViewedCluster& cluster) {
  federation::RunningCluster running;
  running.index = cluster.index;
  running.incarnations = PerCluster(federation::kMaxClusters);
  if (cluster.clcs.empty()) return running;
  running.sn = cluster.clcs.back().decision.record.sn;
  running.depends = cluster.clcs.back().decision.record.after;
  return running;
}

}  // namespace

std::size_t ViewedCluster::kept() const {
  return static_cast<std::size_t>(std::count_if(clcs.begin(), clcs.end(), [](const ViewedClc& c) { return c.kept; }));
}

std::size_t ViewedCluster::forced() const {
  return static_cast<std::size_t>(
      std::count_if(clcs.begin(), clcs.end(), [](const ViewedClc& c) { return c.decision.record.forced; }));
}

const ViewedCluster* FederationView::find(const std::string& name) const {
  const auto at = std::find_if(clusters.begin(), clusters.end(), [&](const auto& c) { return c.name == name; });
  return at == clusters.end() ? nullptr : &*at;
}

std::vector<std::string> FederationView::names() const {
  std::vector<std::string> names;
  for (const ViewedCluster& cluster : clusters) names.push_back(cluster.name);
  return names;
}

bool FederationView::is_wired(unsigned cluster) const {
  return std::any_of(clusters.begin(), clusters.end(), [&](const ViewedCluster& other) {
    return other.index != cluster && are_wired(cluster, other.index);
  });
}

const RecoveryPlan* FederationView::unreached() const {
  return plans.empty() || plans.back().reached ? nullptr : &plans.back();
}

Status read_federation(const JobView& view, FederationView* federation) {
  *federation = FederationView();
  SHADOWIB_TRY(read_clusters(view, &federation->clusters));
  if (!federation->exists()) return {};
  Fields fields;
  bool found = false;
  SHADOWIB_TRY(view.fields("federation", &fields, &found));
  federation->policy = field_text(fields, "policy");
  IncarnationWord word;
  SHADOWIB_TRY(read_plans(*view.exchange, view.epoch, &federation->plans, nullptr));
  SHADOWIB_TRY(read_word(*view.exchange, view.epoch, &word));
  SHADOWIB_TRY(read_wired(*view.exchange, view.epoch, &federation->wired));
  federation->told = word.incarnations;
  for (ViewedCluster& cluster : federation->clusters) {
    std::vector<Decision> decisions;
    SHADOWIB_TRY(read_decisions(*view.exchange, view.epoch, cluster.index, &decisions));
    for (Decision& decision : decisions) {
      if (decision.record.claim == federation::ClcRecord::Claim::kVoid) {
        cluster.voids.push_back(std::move(decision));
        continue;
      }
      if (is_undone(federation->plans, decision.record)) {
        cluster.undone.push_back(std::move(decision));
        continue;
      }
      const bool kept = has_set(view, decision);
      cluster.clcs.push_back({std::move(decision), kept});
    }
  }
  return {};
}

void add_answers(const std::vector<MemberStatus>& members, FederationView* federation) {
  federation->tells_wiring =
      std::all_of(members.begin(), members.end(), [](const MemberStatus& m) { return m.meets >= kFirstTellsWiring; });
  for (ViewedCluster& cluster : federation->clusters) {
    bool failed = false, any_ended = false;
    PerCluster left(federation::kMaxClusters);  // D of members that have ended
    for (const MemberStatus& member : members) {
      if (member.cluster != cluster.name) continue;
      any_ended = any_ended || member.gone;
      if (member.gone) left.raise(widened(member.left_depends));
      if (member.gone) continue;
      cluster.members += member.alive;
      Json state;
      const bool says = member.answered && Json::parse(member.json, &state) && state.contains("cluster");
      failed = failed || !member.alive || !says;
      if (says) add_answer(state["cluster"], &cluster);
    }
    if (failed) cluster.running.reset();
    if (any_ended && !failed && !cluster.running && (cluster.clcs.empty() || !federation->is_wired(cluster.index)))
      cluster.running = ended(cluster);
    if (!cluster.running) continue;
    cluster.running->depends = widened(cluster.running->depends);
    cluster.running->depends.raise(left);
    cluster.running->depends = bounded(*federation, *cluster.running);
  }
  PerCluster incarnations = incarnations_of(*federation);
  // A cluster that has ended tells none. All clusters of an epoch begin in one.
  const std::uint32_t latest = *std::max_element(incarnations.of.begin(), incarnations.of.end());
  for (const ViewedCluster& cluster : federation->clusters)
    if (cluster.running && incarnations[cluster.index] == 0) incarnations[cluster.index] = latest;
  for (ViewedCluster& cluster : federation->clusters)
    if (cluster.running) cluster.running->incarnations = incarnations;
}

std::vector<federation::ClusterHistory> histories_of(const FederationView& federation) {
  std::vector<federation::ClusterHistory> histories;
  for (const ViewedCluster& cluster : federation.clusters) {
    federation::ClusterHistory history;
    for (const ViewedClc& clc : cluster.clcs) {
      if (!clc.kept) continue;
      federation::ClcRecord record = clc.decision.record;
      record.before = sized(record.before, federation.clusters.size());
      record.after = sized(record.after, federation.clusters.size());
      history.kept.push_back(record);
    }
    history.running = cluster.running;
    if (const RecoveryPlan* plan = federation.unreached(); plan != nullptr && plan->goes_back(cluster.index))
      history.bound = plan->sns[cluster.index];
    histories.push_back(std::move(history));
  }
  return histories;
}

PerCluster sns_of(const FederationView& federation) {
  PerCluster sns(static_cast<unsigned>(federation.clusters.size()));
  for (const ViewedCluster& cluster : federation.clusters)
    if (!cluster.clcs.empty()) sns[cluster.index] = cluster.clcs.back().decision.record.sn;
  return sns;
}

PerCluster widened(const PerCluster& numbers) { return sized(numbers, federation::kMaxClusters); }

PerCluster bounded(const FederationView& federation, const federation::RunningCluster& running) {
  PerCluster sns = sns_of(federation), depends = sized(running.depends, federation.clusters.size());
  // Under --hold messages may have left before CLC 1: they count as sent behind it.
  for (unsigned i = 0; i < sns.clusters; ++i)
    depends[i] = i != running.index ? std::min(depends[i], std::max(sns[i], 1u)) : 0;
  return depends;
}

std::vector<federation::Stamp> possible(const FederationView& federation,
                                        const std::vector<federation::Stamp>& held) {
  const PerCluster sns = sns_of(federation);
  const auto may_be = [&sns](unsigned cluster, federation::Sn sn) {
    return cluster < sns.clusters ? sn <= std::max(sns[cluster], 1u) : sn == 0;
  };
  std::vector<federation::Stamp> result;
  for (const federation::Stamp& stamp : held) {
    bool is_possible = stamp.cluster < sns.clusters && may_be(stamp.cluster, stamp.sn);
    for (unsigned i = 0; i < stamp.vector.clusters; ++i) is_possible = is_possible && may_be(i, stamp.vector[i]);
    if (is_possible) result.push_back(stamp);
  }
  return result;
}

PerCluster incarnations_of(const FederationView& federation) {
  PerCluster incarnations(static_cast<unsigned>(federation.clusters.size()));
  for (const ViewedCluster& cluster : federation.clusters) {
    if (cluster.index < federation.told.clusters) incarnations[cluster.index] = federation.told[cluster.index];
    if (cluster.running)
      incarnations[cluster.index] =
          std::max(incarnations[cluster.index], cluster.running->incarnations[cluster.index]);
    else if (incarnations[cluster.index] != 0)
      continue;
    else if (!cluster.clcs.empty())
      incarnations[cluster.index] = cluster.clcs.back().decision.record.incarnation;
  }
  return incarnations;
}

Status no_such_cluster(const FederationView& federation, const std::string& job, const std::string& name) {
  if (!federation.exists())
    return Status::of(Code::kNotFound, 0, "job %.64s has no clusters (run --cluster)", job.c_str());
  std::string names;
  for (const std::string& known : federation.names()) names += (names.empty() ? "" : ", ") + known;
  return Status::of(Code::kNotFound, 0, "job %.64s has no cluster %.60s; its clusters: %.200s", job.c_str(),
                    name.c_str(), names.c_str());
}

}  // namespace shadowib
