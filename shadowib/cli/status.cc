// shadowib status: the jobs of a directory, their members and what these have open.
#include <algorithm>

#include "hooks/command/coordinator.h"
#include "hooks/command/federation_view.h"
#include "hooks/store/keeper_info.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/far_sets.h"
#include "shadowib/cli/far_turns.h"
#include "shadowib/cli/federation_text.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/portable_job.h"
#include "shadowib/cli/redundancy.h"
#include "shadowib/cli/store_options.h"
#include "shadowib/cli/watch.h"

namespace shadowib::cli {
namespace {

constexpr double kKeepersNs = 0.5e9;  // for each second of --timeout

struct StatusArguments {
  Common common;
  std::string job;
  double timeout_s = 2, every_s = 1;
  bool watch = false;
};

constexpr char kStatusExamples[] =
    "Examples:\n"
    "  shadowib status                      all jobs of --dir\n"
    "  shadowib status demo                 members and their queue pairs\n"
    "  shadowib status demo --watch         a screen: members, rates, the newest set with its age and cost\n"
    "  shadowib status demo --json | jq '.members[].state.objects.queue_pairs[].sends_posted'\n";

const char* member_state(const MemberStatus& m) {
  if (m.answered) return "alive";
  if (m.gone) return "left";
  return m.alive ? "no answer" : "dead";
}

Json member_json(const MemberStatus& m) {
  Json json{{"index", m.index},     {"pid", m.pid},     {"host", m.host}, {"comm", m.comm},        {"exe", m.exe},
            {"version", m.version}, {"alive", m.alive}, {"gone", m.gone}, {"answered", m.answered}};
  if (!m.cluster.empty()) json["cluster"] = m.cluster;
  Json state;
  json["state"] = Json::parse(m.json, &state) ? state : Json();
  return json;
}

// The text of a field that members report, whatever its type.
std::string field(const Json& object, const char* name) {
  if (!object.is_object() || !object.contains(name)) return "";
  const Json& value = object[name];
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// "10.0.0.1:4711 10.0.1.1:4711", where a member of ib2tcp listens; "host only" if nowhere.
std::string network_of(const Json& objects) {
  const Json figures =
      objects.is_object() && objects.contains("backend_figures") ? objects["backend_figures"] : Json();
  if (!figures.is_object() || !figures.contains("listens")) return "";
  std::string text;
  for (const Json& address : figures["listens"]) {
    const std::string at = address.is_string() ? address.get<std::string>() : "";
    text += (text.empty() ? "" : " ") + (at.find(':') == std::string::npos ? at : "[" + at + "]") + ":" +
            field(figures, "port");
  }
  return text.empty() ? "this host" : text;
}

void print_members(const std::vector<MemberStatus>& members) {
  std::vector<std::string> columns{"member",  "pid",     "host",     "command", "state",      "phase",
                                   "backend", "network", "contexts", "regions", "queue pairs"};
  const bool clusters = std::any_of(members.begin(), members.end(), [](const auto& m) { return !m.cluster.empty(); });
  if (clusters) columns.insert(columns.begin() + 1, "cluster");
  Table table(columns);
  Table pairs({"member", "qp_num", "type", "state", "remote qp_num", "remote lid", "sends posted", "retired",
               "receives posted", "completed"});
  for (const MemberStatus& m : members) {
    Json state = member_json(m)["state"];
    Json objects = state.is_object() && state.contains("objects") ? state["objects"] : Json();
    Json list = objects.is_object() && objects.contains("queue_pairs") ? objects["queue_pairs"] : Json();
    std::vector<std::string> row{std::to_string(m.index),
                                 std::to_string(m.pid),
                                 m.host,
                                 m.comm,
                                 member_state(m),
                                 field(state, "phase"),
                                 field(objects, "backend"),
                                 network_of(objects),
                                 field(objects, "contexts"),
                                 field(objects, "memory_regions"),
                                 list.is_array() ? std::to_string(list.size()) : ""};
    if (clusters) row.insert(row.begin() + 1, m.cluster);
    table.add(row);
    if (!list.is_array()) continue;
    for (const Json& qp : list)
      pairs.add({std::to_string(m.index), field(qp, "qp_num"), field(qp, "type"), field(qp, "state"),
                 field(qp, "remote_qp_num"), field(qp, "remote_lid"), field(qp, "sends_posted"),
                 field(qp, "sends_retired"), field(qp, "receives_posted"), field(qp, "receives_completed")});
  }
  if (!table.empty()) table.print();
  if (pairs.empty()) return;
  std::printf("\n");
  pairs.print();
}

// Guests that live, and how many have ended.
Status add_guests(const Common& common, const std::string& job, const std::string& exchange, Json* json) {
  JobView view;
  std::vector<MemberStatus> guests;
  std::size_t ended = 0;
  SHADOWIB_TRY(open_job(common.directory, job, exchange, &view));
  SHADOWIB_TRY(list_guests(view, &guests, &ended));
  if (guests.empty() && ended == 0) return {};
  (*json)["guests"] = Json::array();
  for (const MemberStatus& g : guests)
    (*json)["guests"].push_back({{"guest", g.index - kFirstGuest},
                                 {"index", g.index},
                                 {"pid", g.pid},
                                 {"host", g.host},
                                 {"comm", g.comm},
                                 {"exe", g.exe}});
  (*json)["guests_ended"] = ended;
  return {};
}

void print_guests(const Json& json) {
  if (!json.contains("guests")) return;
  std::printf("\nguests: %zu alive, %zu ended\n", json["guests"].size(), json["guests_ended"].get<std::size_t>());
  Table table({"guest", "pid", "host", "command"});
  for (const Json& guest : json["guests"])
    table.add({field(guest, "guest"), field(guest, "pid"), field(guest, "host"), field(guest, "comm")});
  if (!table.empty()) table.print();
}

// The store that the job was started with, unless it is central, and its keepers.
Status add_store(const std::string& directory, const std::string& job, Json* json) {
  std::string store, place;
  SHADOWIB_TRY(recorded_store(directory, job, &store, &place));
  if (store.empty()) return {};
  (*json)["store"] = store;
  (*json)["near"] = place;
  (*json)["keepers"] = Json::array();
  for (const KeeperInfo& keeper : live_keepers(directory, job)) (*json)["keepers"].push_back(keeper.name);
  return {};
}

void print_store(const Json& json) {
  if (!json.contains("store")) return;
  std::string keepers;
  for (const Json& name : json["keepers"])
    keepers += (keepers.empty() ? "; keepers on " : ", ") + name.get<std::string>();
  const std::string place = json["near"].get<std::string>();
  std::printf("store %s%s%s\n", json["store"].get<std::string>().c_str(),
              place.empty() ? "" : (" in " + place).c_str(), keepers.c_str());
}

// The far place of the job, and whether a flush is under way.
Status add_far(const std::string& directory, const std::string& job, Json* json) {
  FarSettings settings;
  SHADOWIB_TRY(choose_far({}, directory, job, &settings));
  if (!settings.known) return {};
  (*json)["far"] = settings.spec.text();
  (*json)["flush"] = flush_text(settings.every);
  (*json)["flushing"] = FlushTurn::taken(directory, job);
  (*json)["sets_in_far"] = sets_in_far(directory, job).size();
  return {};
}

void print_far(const Json& json) {
  if (!json.contains("far")) return;
  std::printf("far place %s, flush %s, %zu sets there%s\n", json["far"].get<std::string>().c_str(),
              json["flush"].get<std::string>().c_str(), json["sets_in_far"].get<std::size_t>(),
              json["flushing"].get<bool>() ? "; a flush is under way" : "");
}

// The clusters of a federation.
Status add_clusters(const Common& common, const std::string& job, const std::string& exchange,
                    const std::vector<MemberStatus>& members, FederationView* federation, Json* json) {
  if (std::none_of(members.begin(), members.end(), [](const MemberStatus& m) { return !m.cluster.empty(); }))
    return {};
  JobView view;
  SHADOWIB_TRY(open_job(common.directory, job, exchange, &view));
  SHADOWIB_TRY(read_federation(view, federation));
  add_answers(members, federation);
  (*json)["policy"] = federation->policy;
  (*json)["clusters"] = clusters_json(*federation);
  (*json)["recoveries"] = recoveries_json(*federation);
  return {};
}

// A job of portable programs: they have no exchange, and no queue pairs.
Status show_portable_job(const Common& common, const std::string& job, Json* json) {
  const std::vector<PortableMember> members = portable_members(common.directory, job);
  const std::string epoch = present_epoch(common.directory, job);
  *json = {{"job", job},       {"directory", common.directory}, {"epoch", epoch}, {"alive", !members.empty()},
           {"portable", true}, {"members", Json::array()}};
  Table table({"member", "pid", "host", "command", "state"});
  for (const PortableMember& member : members) {
    Json facts;
    SHADOWIB_TRY(portable_facts(common.directory, job, member.index, &facts));
    (*json)["members"].push_back({{"index", member.index},
                                  {"pid", facts.at("pid")},
                                  {"host", facts.at("host")},
                                  {"comm", facts.at("comm")},
                                  {"alive", true}});
    table.add(
        {std::to_string(member.index), field(facts, "pid"), field(facts, "host"), field(facts, "comm"), "alive"});
  }
  if (common.json) return {};
  std::printf("job %s, epoch %s, of portable programs, %s\n", job.c_str(), epoch.c_str(),
              members.empty() ? "not alive" : "alive");
  if (!members.empty()) table.print();
  return {};
}

// One job as JSON, and printed for people unless --json.
Status show_job(const StatusArguments& arguments, const std::string& job, Json* json) {
  const Common& common = arguments.common;
  std::vector<MemberStatus> members;
  std::string epoch, who;
  if (is_portable_job(common.directory, job)) return show_portable_job(common, job, json);
  std::string exchange = exchange_of(common, job);
  SHADOWIB_TRY(settle_exchange(job_paths(common.directory, job).password, &exchange));
  SHADOWIB_TRY(
      query_status(common.directory, job, exchange, static_cast<int>(arguments.timeout_s * 1000), &members, &epoch));
  bool alive = job_alive(common.directory, job, &who);
  *json = {
      {"job", job}, {"directory", common.directory}, {"epoch", epoch}, {"alive", alive}, {"members", Json::array()}};
  for (const MemberStatus& member : members) (*json)["members"].push_back(member_json(member));
  SHADOWIB_TRY(add_guests(common, job, exchange, json));
  SHADOWIB_TRY(add_store(common.directory, job, json));
  const auto keepers_ns = static_cast<std::int64_t>(arguments.timeout_s * kKeepersNs);
  if (const Json redundancy = look_at_redundancy(common.directory, job, keepers_ns); !redundancy.is_null())
    (*json)["redundancy"] = redundancy;
  SHADOWIB_TRY(add_far(common.directory, job, json));
  FederationView federation;
  SHADOWIB_TRY(add_clusters(common, job, exchange, members, &federation, json));
  if (common.json) return {};
  std::printf("job %s, epoch %s, %s\n", job.c_str(), epoch.c_str(),
              alive                                     ? "alive"
              : job_in_use(common.directory, job, &who) ? "no member yet"
                                                        : "not alive");
  print_store(*json);
  if (json->contains("redundancy")) print_redundancy((*json)["redundancy"]);
  print_far(*json);
  print_clusters(federation);
  print_members(members);
  print_guests(*json);
  return {};
}

int status(StatusArguments& arguments) {
  Common& common = arguments.common;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = require_directory(common); !s.ok()) return fail(common, s);
  if (arguments.watch) {
    std::string job;
    if (Status s = choose_job(common.directory, arguments.job, &job); !s.ok()) return fail(common, s);
    return watch_job(common, job, arguments.every_s, arguments.timeout_s);
  }
  if (!arguments.job.empty()) {
    std::string job;
    Json json;
    if (Status s = choose_job(common.directory, arguments.job, &job); !s.ok()) return fail(common, s);
    if (Status s = show_job(arguments, job, &json); !s.ok()) return fail(common, s);
    if (common.json) print_json(json);
    return 0;
  }
  Json all = Json::array();
  for (const std::string& job : jobs_in(common.directory)) {
    Json json;
    if (!common.json && !all.empty()) std::printf("\n");
    if (Status s = show_job(arguments, job, &json); !s.ok()) json = {{"job", job}, {"error", s.text()}};
    if (!common.json && json.contains("error"))
      std::printf("job %s: %s\n", job.c_str(), json["error"].get<std::string>().c_str());
    all.push_back(json);
  }
  if (common.json)
    print_json({{"directory", common.directory}, {"jobs", all}});
  else if (all.empty())
    std::fprintf(stderr, "shadowib: no jobs in %s\n", common.directory.c_str());
  return 0;
}

}  // namespace

void add_status(Command& program) {
  auto arguments = std::make_shared<StatusArguments>();
  Command* command = program.add_subcommand("status", "Show jobs, their members and queue pairs");
  command->add_option("J", arguments->job, "The job; all of --dir if left out")->not_empty("a job");
  command
      ->add_option("--timeout", arguments->timeout_s,
                   "Wait at most S seconds for members to answer, and half as long for\nkeepers; default 2")
      ->between(0.001, 2000000, "seconds")
      ->type_name("S");
  command->add_flag("--watch", arguments->watch,
                    "Look again and again, until the job has ended or Ctrl-C: members,\nrates since the last look, "
                    "age, size and cost of the newest set");
  command->add_option("--every", arguments->every_s, "Of --watch, S seconds between two looks; default 1")
      ->between(0.05, 100000, "seconds")
      ->type_name("S");
  add_common(command, &arguments->common);
  command->footer(kStatusExamples);
  command->callback([arguments] { return status(*arguments); });
}

}  // namespace shadowib::cli
