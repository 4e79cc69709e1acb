#include "perftest/fedsim/input.h"

#include <cmath>
#include <fstream>
#include <initializer_list>
#include <sstream>

#include "hooks/federation/rule.h"

namespace shadowib::fedsim {
namespace {

Status bad(const std::string& field, const char* what) {
  return Status::of(Code::kCorrupt, 0, "field %s %s", field.c_str(), what);
}

Status only(const Json& json, std::initializer_list<const char*> fields) {
  if (!json.is_object()) return Status::of(Code::kCorrupt, 0, "the file is no object");
  for (const auto& [name, value] : json.items()) {
    bool known = false;
    for (const char* field : fields) known |= name == field;
    if (!known) return bad(name, "is unknown");
  }
  return {};
}

Status number(const Json& json, const std::string& field, double least, double most, double* value) {
  if (!json.is_number()) return bad(field, "is no number");
  const double read = json.get<double>();
  if (!(read >= least && read <= most)) return bad(field, "is out of range");
  *value = read;
  return {};
}

Status whole(const Json& json, const std::string& field, std::uint64_t least, std::uint64_t most,
             std::uint64_t* value) {
  if (!json.is_number_unsigned()) return bad(field, "is no whole number");
  const std::uint64_t read = json.get<std::uint64_t>();
  if (read < least || read > most) return bad(field, "is out of range");
  *value = read;
  return {};
}

constexpr double kMostSeconds = 1e8;  // three years

// A time in seconds; null, where that is allowed: never.
Status seconds(const Json& json, const std::string& field, double least, bool may_be_null, Time* time) {
  if (may_be_null && json.is_null()) {
    *time = kNever;
    return {};
  }
  double value = 0;
  SHADOWIB_TRY(number(json, field, least, kMostSeconds, &value));
  *time = static_cast<Time>(std::llround(value * kSecond));
  return {};
}

Status list(const Json& json, const std::string& field, std::size_t size) {
  if (!json.is_array()) return bad(field, "is no list");
  if (json.size() != size) return bad(field, "has not one entry for each cluster");
  return {};
}

Status read_link(const Json& json, const std::string& field, NetworkLink* link) {
  SHADOWIB_TRY(only(json, {"latency_us", "megabytes_per_s"}));
  SHADOWIB_TRY(number(json["latency_us"], field + ".latency_us", 0, 1e9, &link->latency_us));
  return number(json["megabytes_per_s"], field + ".megabytes_per_s", 1e-3, 1e9, &link->bytes_per_us);
}

Status read_matrix(const Json& json, const std::string& field, unsigned clusters,
                   std::vector<std::vector<unsigned>>* matrix) {
  SHADOWIB_TRY(list(json, field, clusters));
  for (const Json& row : json) {
    SHADOWIB_TRY(list(row, field, clusters));
    matrix->emplace_back();
    for (const Json& entry : row) {
      std::uint64_t value = 0;
      SHADOWIB_TRY(whole(entry, field, 0, 10'000'000, &value));
      matrix->back().push_back(static_cast<unsigned>(value));
    }
  }
  return {};
}

Status read_pattern(const Json& json, unsigned clusters, ApplicationPattern* application) {
  SHADOWIB_TRY(list(json, "clusters", clusters));
  for (const Json& cluster : json) {
    SHADOWIB_TRY(only(cluster, {"mean_computation_s", "sends"}));
    Time mean = 0;
    SHADOWIB_TRY(seconds(cluster["mean_computation_s"], "mean_computation_s", 1e-6, false, &mean));
    application->mean_computation_us.push_back(static_cast<double>(mean));
    SHADOWIB_TRY(list(cluster["sends"], "sends", clusters));
    application->sends.emplace_back();
    double sum = 0;
    for (const Json& entry : cluster["sends"]) {
      SHADOWIB_TRY(number(entry, "sends", 0, 1, &application->sends.back().emplace_back()));
      sum += application->sends.back().back();
    }
    if (sum > 1 + 1e-9) return bad("sends", "has probabilities of more than 1");
  }
  return {};
}

Status read_json(const std::string& path, Json* json) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return Status::of(Code::kIo, errno, "%s cannot be read; give the path of a file", path.c_str());
  std::string why;
  if (!Json::parse(text.str(), json, &why)) return Status::of(Code::kCorrupt, 0, "is no JSON: %s", why.c_str());
  return {};
}

Status in_file(const Status& status, const std::string& path) {
  if (status.ok() || status.code() == Code::kIo) return status;
  return Status::of(status.code(), status.error(), "%.110s: %.260s", path.c_str(), status.text());
}

}  // namespace

Time NetworkLink::takes(std::uint64_t bytes) const {
  return static_cast<Time>(std::llround(latency_us + static_cast<double>(bytes) / bytes_per_us));
}

Status read_topology(const Json& json, Topology* topology) {
  SHADOWIB_TRY(only(json, {"clusters", "between", "mtbf_s"}));
  const Json& clusters = json["clusters"];
  if (!clusters.is_array() || clusters.empty() || clusters.size() > federation::kMaxClusters)
    return bad("clusters", "is no list of 1 to 32 clusters");
  for (const Json& cluster : clusters) {
    SHADOWIB_TRY(only(cluster, {"nodes", "network"}));
    std::uint64_t nodes = 0;
    SHADOWIB_TRY(whole(cluster["nodes"], "nodes", 1, 100'000, &nodes));
    topology->nodes.push_back(static_cast<unsigned>(nodes));
    SHADOWIB_TRY(read_link(cluster["network"], "network", &topology->inside.emplace_back()));
  }
  const unsigned count = topology->clusters();
  topology->between.assign(count, std::vector<NetworkLink>(count));
  // A triangle: row i has the links of cluster i + 1 to those before it.
  if (!json["between"].is_array() || json["between"].size() != count - 1) return bad("between", "is no triangle");
  unsigned row = 0;
  for (const Json& links : json["between"]) {
    ++row;
    if (!links.is_array() || links.size() != row) return bad("between", "is no triangle");
    unsigned column = 0;
    for (const Json& link : links) {
      SHADOWIB_TRY(read_link(link, "between", &topology->between[row][column]));
      topology->between[column][row] = topology->between[row][column];
      ++column;
    }
  }
  return seconds(json["mtbf_s"], "mtbf_s", 1, true, &topology->mtbf);
}

Status read_application(const Json& json, unsigned clusters, ApplicationPattern* application) {
  SHADOWIB_TRY(only(json, {"total_s", "message_bytes", "clusters", "messages", "bursts"}));
  SHADOWIB_TRY(seconds(json["total_s"], "total_s", 1, false, &application->total));
  SHADOWIB_TRY(whole(json["message_bytes"], "message_bytes", 0, 1ull << 40, &application->message_bytes));
  if (json.contains("clusters") == json.contains("messages"))
    return Status::of(Code::kCorrupt, 0, "either field clusters or field messages must be given");
  if (json.contains("clusters")) {
    if (json.contains("bursts")) return bad("bursts", "needs field messages");
    return read_pattern(json["clusters"], clusters, application);
  }
  SHADOWIB_TRY(read_matrix(json["messages"], "messages", clusters, &application->messages));
  if (json.contains("bursts")) return read_matrix(json["bursts"], "bursts", clusters, &application->bursts);
  application->bursts.assign(clusters, std::vector<unsigned>(clusters, 0));
  return {};
}

Status read_timers(const Json& json, unsigned clusters, ProtocolTimers* timers) {
  SHADOWIB_TRY(only(json, {"clc_s", "in_step", "clc_takes_s", "collection_s"}));
  SHADOWIB_TRY(list(json["clc_s"], "clc_s", clusters));
  for (const Json& entry : json["clc_s"])
    SHADOWIB_TRY(seconds(entry, "clc_s", 1e-3, true, &timers->clc.emplace_back()));
  if (!json["in_step"].is_boolean()) return bad("in_step", "is neither true nor false");
  timers->in_step = json["in_step"].get<bool>();
  SHADOWIB_TRY(seconds(json["clc_takes_s"], "clc_takes_s", 0, false, &timers->clc_takes));
  return seconds(json["collection_s"], "collection_s", 1e-3, true, &timers->collection);
}

Status read_input(const std::string& topology, const std::string& application, const std::string& timers,
                  Input* input) {
  Json json;
  SHADOWIB_TRY(in_file(read_json(topology, &json), topology));
  SHADOWIB_TRY(in_file(read_topology(json, &input->topology), topology));
  const unsigned clusters = input->topology.clusters();
  SHADOWIB_TRY(in_file(read_json(application, &json), application));
  SHADOWIB_TRY(in_file(read_application(json, clusters, &input->application), application));
  SHADOWIB_TRY(in_file(read_json(timers, &json), timers));
  return in_file(read_timers(json, clusters, &input->timers), timers);
}

}  // namespace shadowib::fedsim
