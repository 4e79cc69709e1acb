#include "shadowib/cli/federation_text.h"

#include <cstdio>

#include "shadowib/cli/output.h"
#include "shadowib/cli/units.h"

namespace shadowib::cli {
namespace {

Json depends_json(const FederationView& federation, const federation::PerCluster& depends) {
  Json json = Json::object();
  for (const ViewedCluster& cluster : federation.clusters) json[cluster.name] = depends[cluster.index];
  return json;
}

// The clusters to which it was connected in this epoch. Null: not known.
Json wired_json(const FederationView& federation, const ViewedCluster& cluster) {
  if (!federation.tells_wiring) return nullptr;
  Json names = Json::array();
  for (const ViewedCluster& other : federation.clusters)
    if (other.index != cluster.index && federation.are_wired(cluster.index, other.index)) names.push_back(other.name);
  return names;
}

std::string names_of(const FederationView& federation, const std::vector<unsigned>& clusters) {
  std::string names;
  for (const unsigned cluster : clusters)
    if (cluster < federation.clusters.size())
      names += (names.empty() ? "" : ", ") + federation.clusters[cluster].name;
  return names;
}

Json clc_json(const FederationView& federation, const ViewedClc& clc) {
  const federation::ClcRecord& record = clc.decision.record;
  return Json{{"sn", record.sn},
              {"incarnation", record.incarnation},
              {"forced", record.forced},
              {"set", clc.decision.set},
              {"kept", clc.kept},
              {"before", depends_json(federation, record.before)},
              {"after", depends_json(federation, record.after)}};
}

Json cluster_json(const FederationView& federation, const ViewedCluster& cluster) {
  Json json{{"name", cluster.name},
            {"index", cluster.index},
            {"members", cluster.members},
            {"running", cluster.running.has_value()},
            {"kept", cluster.kept()},
            {"forced", cluster.forced()},
            {"unforced", cluster.clcs.size() - cluster.forced()},
            {"void", cluster.voids.size()},
            {"undone", cluster.undone.size()},
            {"wired", wired_json(federation, cluster)},
            {"held", cluster.held},
            {"held_s", cluster.held_s},
            {"delivered_early", cluster.delivered_early},
            {"stops", cluster.stops},
            {"log_bytes", cluster.log_bytes}};
  json["waits_for"] = Json::array();
  for (const unsigned other : cluster.waits_for)
    if (other < federation.clusters.size()) json["waits_for"].push_back(federation.clusters[other].name);
  if (!cluster.refusal.empty()) json["refusal"] = cluster.refusal;
  if (cluster.running) {
    json["sn"] = cluster.running->sn;
    json["incarnation"] = cluster.running->incarnations[cluster.index];
    json["depends"] = depends_json(federation, cluster.running->depends);
  }
  json["clcs"] = Json::array();
  for (const ViewedClc& clc : cluster.clcs) json["clcs"].push_back(clc_json(federation, clc));
  return json;
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", seconds);
  return text;
}

}  // namespace

std::string depends_text(const FederationView& federation, const federation::PerCluster& depends) {
  std::string text;
  for (const ViewedCluster& cluster : federation.clusters)
    if (depends[cluster.index] != 0)
      text += (text.empty() ? "" : " ") + cluster.name + ":" + std::to_string(depends[cluster.index]);
  return text.empty() ? "-" : text;
}

Json clusters_json(const FederationView& federation) {
  Json json = Json::array();
  for (const ViewedCluster& cluster : federation.clusters) json.push_back(cluster_json(federation, cluster));
  return json;
}

Json recoveries_json(const FederationView& federation) {
  Json json = Json::array();
  for (const RecoveryPlan& plan : federation.plans) {
    Json clusters = Json::object();
    for (const unsigned cluster : plan.back)
      if (cluster < federation.clusters.size()) clusters[federation.clusters[cluster].name] = plan.sns[cluster];
    json.push_back(
        {{"number", plan.number}, {"to", clusters}, {"generation", plan.generation}, {"reached", plan.reached}});
  }
  return json;
}

void print_clusters(const FederationView& federation) {
  if (!federation.exists()) return;
  std::printf("federation of %zu clusters, policy %s\n", federation.clusters.size(), federation.policy.c_str());
  Table table(
      {"cluster", "members", "SN", "incarnation", "delivered", "kept", "forced", "unforced", "held", "stops", "log"});
  for (const ViewedCluster& cluster : federation.clusters) {
    const bool runs = cluster.running.has_value();
    table.add({cluster.name, std::to_string(cluster.members), runs ? std::to_string(cluster.running->sn) : "?",
               runs ? std::to_string(cluster.running->incarnations[cluster.index]) : "?",
               runs ? depends_text(federation, cluster.running->depends) : "?", std::to_string(cluster.kept()),
               std::to_string(cluster.forced()), std::to_string(cluster.clcs.size() - cluster.forced()),
               cluster.held == 0 ? "-" : std::to_string(cluster.held) + " for " + seconds_text(cluster.held_s),
               std::to_string(cluster.stops), runs ? human_bytes(cluster.log_bytes) : "?"});
  }
  table.print();
  if (const RecoveryPlan* plan = federation.unreached(); plan != nullptr)
    std::printf("recovery %llu of %s is under way, or has not come to its end: `shadowib restart --job` repeats it\n",
                static_cast<unsigned long long>(plan->number), names_of(federation, plan->back).c_str());
  for (const ViewedCluster& cluster : federation.clusters) {
    if (cluster.delivered_early != 0)
      std::printf("cluster %s has delivered %llu messages without a checkpoint, since it was refused (--hold)\n",
                  cluster.name.c_str(), static_cast<unsigned long long>(cluster.delivered_early));
    if (!cluster.waits_for.empty())
      std::printf(
          "cluster %s has messages that wait for cluster %s, which has failed: `shadowib restart --job` takes it "
          "back\n",
          cluster.name.c_str(), names_of(federation, {cluster.waits_for.begin(), cluster.waits_for.end()}).c_str());
    if (!cluster.refusal.empty())
      std::printf("cluster %s: messages wait, and its checkpoint is refused: %s\n", cluster.name.c_str(),
                  cluster.refusal.c_str());
  }
  std::printf("\n");
}

}  // namespace shadowib::cli
