// shadowib line: which clusters of a federation go back if some fail, and what work that loses. Changes nothing.
#include "hooks/federation/line.h"

#include <algorithm>
#include <memory>
#include <sstream>

#include "shadowib/cli/clc_sets.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/federation_text.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace {

struct LineArguments {
  Common common;
  std::string job, fail;
  double timeout_s = 2;
};

constexpr char kLineExamples[] =
    "Examples:\n"
    "  shadowib line demo                   for each cluster: who goes back if it fails\n"
    "  shadowib line demo --fail B          who goes back if B fails\n"
    "  shadowib line demo --fail A,B --json\n\n"
    "A cluster that has failed counts as failed in each line. Nothing is changed: `shadowib restart --job demo` goes "
    "to it.\n";

// "A,B": indices. kNotFound names the clusters.
Status parse_failed(const FederationView& federation, const std::string& job, const std::string& text,
                    std::vector<unsigned>* failed) {
  std::istringstream list(text);
  for (std::string name; std::getline(list, name, ',');) {
    const ViewedCluster* cluster = federation.find(name);
    if (cluster == nullptr) return no_such_cluster(federation, job, name);
    failed->push_back(cluster->index);
  }
  return failed->empty() ? Status(Code::kUsage, EINVAL, "--fail names no cluster") : Status();
}

const ViewedClc* clc_of(const ViewedCluster& cluster, federation::Sn sn) {
  const auto at = std::find_if(cluster.clcs.rbegin(), cluster.clcs.rend(),
                               [sn](const ViewedClc& clc) { return clc.kept && clc.decision.record.sn == sn; });
  return at == cluster.clcs.rend() ? nullptr : &*at;
}

struct ShownLine {
  std::string failed;  // "A, B"
  Json json;
  std::vector<std::vector<std::string>> rows;
};

// The line if those fail, in words. A failure that leaves no line is told in its place.
ShownLine show_line(const FederationView& federation, std::vector<federation::ClusterHistory> histories,
                    const std::vector<unsigned>& failed) {
  ShownLine shown;
  Json names = Json::array();
  for (const unsigned cluster : failed) {
    histories[cluster].running.reset();
    shown.failed += (shown.failed.empty() ? "" : ", ") + federation.clusters[cluster].name;
    names.push_back(federation.clusters[cluster].name);
  }
  shown.json = Json{{"fail", names}};
  federation::RecoveryLine line;
  if (const Status s = federation::find_line(histories, &line); !s.ok()) {
    shown.json["error"] = s.text();
    shown.rows.push_back({shown.failed, "-", "no line", "", "", s.text()});
    return shown;
  }
  const std::int64_t now_ms = wall_clock_ns() / 1'000'000;
  double lost_s = 0;
  Json clusters = Json::array();
  for (const ViewedCluster& cluster : federation.clusters) {
    const federation::RecoveryLine::Place& place = line.clusters[cluster.index];
    Json json{{"name", cluster.name}, {"stays", place.stays}};
    if (place.stays) {
      clusters.push_back(json);
      shown.rows.push_back({shown.failed, cluster.name, "stays", "", "", ""});
      continue;
    }
    const ViewedClc* clc = clc_of(cluster, place.sn);
    const std::string set = clc != nullptr ? clc->decision.set : "";
    const double lost = clc != nullptr ? std::max(0.0, static_cast<double>(now_ms - clc->decision.at_ms) / 1000) : 0;
    json["sn"] = place.sn;
    json["set"] = set;
    json["lost_s"] = lost;
    lost_s += lost;
    clusters.push_back(json);
    char text[32];
    std::snprintf(text, sizeof(text), "%.0f s", lost);
    shown.rows.push_back({shown.failed, cluster.name, "goes back", std::to_string(place.sn), text, set});
  }
  shown.json["clusters"] = clusters;
  shown.json["lost_s"] = lost_s;
  return shown;
}

int line(LineArguments& arguments) {
  Common& common = arguments.common;
  std::string job;
  FederationView federation;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = require_directory(common); !s.ok()) return fail(common, s);
  if (Status s = choose_job(common.directory, arguments.job, &job); !s.ok()) return fail(common, s);
  if (Status s = look_at_federation(common, job, static_cast<int>(arguments.timeout_s * 1000), &federation); !s.ok())
    return fail(common, s);
  std::vector<std::vector<unsigned>> cases;
  if (arguments.fail.empty()) {
    for (const ViewedCluster& cluster : federation.clusters) cases.push_back({cluster.index});
  } else {
    cases.emplace_back();
    if (Status s = parse_failed(federation, job, arguments.fail, &cases[0]); !s.ok()) return fail(common, s);
  }
  const std::vector<federation::ClusterHistory> histories = histories_of(federation);
  Json lines = Json::array();
  Table table({"if it fails", "cluster", "", "to CLC", "loses", "set"});
  for (const std::vector<unsigned>& failed : cases) {
    const ShownLine shown = show_line(federation, histories, failed);
    lines.push_back(shown.json);
    for (const std::vector<std::string>& row : shown.rows) table.add(row);
  }
  if (common.json) {
    Json names = Json::array();
    for (const std::string& name : federation.names()) names.push_back(name);
    print_json({{"job", job},
                {"policy", federation.policy},
                {"clusters", names},
                {"recoveries", recoveries_json(federation)},
                {"lines", lines}});
    return 0;
  }
  for (const ViewedCluster& cluster : federation.clusters)
    if (!cluster.running && federation.unreached() != nullptr && federation.unreached()->goes_back(cluster.index))
      std::printf("cluster %s is bound by recovery %llu, which is not at its end\n", cluster.name.c_str(),
                  static_cast<unsigned long long>(federation.unreached()->number));
    else if (!cluster.running)
      std::printf("cluster %s has failed, or does not answer: it counts as failed\n", cluster.name.c_str());
  table.print();
  return 0;
}

}  // namespace

void add_line(Command& program) {
  auto arguments = std::make_shared<LineArguments>();
  Command* command = program.add_subcommand("line", "Tell which clusters go back if some fail");
  command->add_option("J", arguments->job, "The job; may be left out if only one is alive")
      ->not_empty("a job")
      ->completed_by(kJobNames);
  command->add_option("--fail", arguments->fail, "The clusters that fail together, as B or A,B; default: each alone")
      ->not_empty("a cluster")
      ->type_name("LIST");
  command->add_option("--timeout", arguments->timeout_s, "Wait at most S seconds for members to answer; default 2")
      ->between(0.001, 2000000, "seconds")
      ->type_name("S");
  add_common(command, &arguments->common);
  command->footer(kLineExamples);
  command->callback([arguments] { return line(*arguments); });
}

}  // namespace shadowib::cli
