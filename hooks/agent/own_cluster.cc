#include "hooks/agent/own_cluster.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/border_trace.h"
#include "hooks/agent/forced_clc.h"
#include "hooks/agent/gate.h"
#include "hooks/agent/incarnations.h"
#include "hooks/agent/join.h"
#include "hooks/agent/log_room.h"
#include "hooks/agent/lost_clusters.h"
#include "hooks/job/decisions.h"
#include "hooks/job/member_record.h"
#include "hooks/raw/tasks.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

using federation::PerCluster;

OwnCluster g_cluster;
PerCluster g_over;
bool g_introduced = false;

bool g_still = false;     // the border
bool g_lets_all = false;  // nothing waits before the next CLC
// Once messages have left without a CLC, because that was refused for too long: as if there had been one.
bool g_leaves_before_first = false;

// A CLC that may count or not.
struct Undecided {
  std::uint64_t attempt = 0;  // 0: none
  federation::Sn sn = 0;
} g_undecided;

const char* cluster_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Of the members so far, one that lives and is in no cluster. Those of this process's kind were looked at by `run`;
// not everybody is started by it.
Status judge_members(const JobInfo& info, const std::vector<std::string>& members) {
  for (const std::string& member : members) {
    const std::string lock = alive_path(info.directory, info.job, info.epoch, member);
    const MemberRecord record = read_member_record(lock);
    if (record.joined && record.cluster.empty() && is_alive(lock))
      return Status::of(
          Code::kUsage, EINVAL,
          "member %.20s of job %.64s (pid %d) is in no cluster, and this process is in cluster %s: start "
          "all processes of the job with --cluster, or none",
          member.c_str(), info.job, record.pid, g_cluster.name);
  }
  return {};
}

Status claim_policy(const JobInfo& info, Exchange& exchange) {
  const std::string key = federation_key(info.epoch);
  const Status claimed = exchange.claim(key, encode_fields({{"policy", policy_name(g_cluster.policy)}}));
  if (claimed.code() != Code::kBusy) return claimed;
  std::string text;
  bool found = false;
  Fields fields;
  SHADOWIB_TRY(exchange.get(key, &text, &found));
  if (!found || !decode_fields(text, &fields))
    return Status::of(Code::kVersion, 0, "%.100s has another protocol", key.c_str());
  const std::string& policy = field_text(fields, "policy");
  if (policy == policy_name(g_cluster.policy)) return {};
  return Status::of(
      Code::kUsage, EINVAL,
      "the clusters of job %.64s have policy %.20s, and cluster %s asks for %s: give all the same --policy", info.job,
      policy.c_str(), g_cluster.name, policy_name(g_cluster.policy));
}

// Only one process joins at a time: indices have no gaps.
Status claim_index(const JobInfo& info, Exchange& exchange, unsigned* index) {
  const std::string key = cluster_key(info.epoch, g_cluster.name);
  std::string text;
  bool found = false;
  Fields fields;
  SHADOWIB_TRY(exchange.get(key, &text, &found));
  if (!found) {
    std::vector<std::string> names;
    SHADOWIB_TRY(exchange.list(cluster_key(info.epoch, ""), &names));
    if (names.size() >= federation::kMaxClusters)
      return Status::of(Code::kUsage, EINVAL, "job %.64s has %zu clusters, and may have no more; %s would be another",
                        info.job, names.size(), g_cluster.name);
    *index = static_cast<unsigned>(names.size());
    return exchange.claim(key, encode_fields({{"index", std::to_string(*index)}}));
  }
  if (!decode_fields(text, &fields) || field_number(fields, "index") >= federation::kMaxClusters)
    return Status::of(Code::kVersion, 0, "%.100s has another protocol", key.c_str());
  *index = static_cast<unsigned>(field_number(fields, "index"));
  return {};
}

// `generation`: of the epoch.
void begin_anew(unsigned index, std::uint32_t generation) {
  g_cluster.running = federation::RunningCluster();
  g_cluster.running.index = index;
  g_cluster.running.depends = PerCluster(federation::kMaxClusters);
  g_cluster.running.incarnations = PerCluster(federation::kMaxClusters);
  // A cluster's first life is its incarnation 1, and a restart of the whole job brings all of them the next one.
  g_cluster.running.incarnations.of.fill(generation + 1);
  g_cluster.stops = g_cluster.delivered_early = 0;
  g_introduced = g_leaves_before_first = g_still = g_lets_all = false;
  g_undecided = Undecided();
  forget_forced_clc();
  forget_gates();
  forget_log_room();
  forget_lost_clusters();
}

// Requests made before this process came are not for it.
void pass_over_requests(Exchange& exchange, const char* epoch) {
  const std::string clc = request_name(g_cluster.running.index), room = room_name(g_cluster.running.index);
  look_up_requests(&exchange, epoch, {{clc.c_str(), &g_cluster.last_request}, {room.c_str(), &g_cluster.last_room}});
}

// Words of recoveries so far. Clusters that come later have the first incarnation.
Status begin_with_words(Exchange& exchange, const char* epoch) {
  IncarnationWord word;
  SHADOWIB_TRY(read_word(exchange, epoch, &word));
  g_cluster.last_word = word.n;
  g_cluster.running.incarnations.raise(word.incarnations);
  return {};
}

void let_go_of(unsigned cluster, federation::Incarnation incarnation) {
  shut_gate(cluster);
  note_return(cluster);
  if (g_agent.participant == nullptr) return;
  if (const Status s = g_agent.participant->cluster_gone(cluster, incarnation); !s.ok())
    log_line(LogLevel::kError, "%s", s.text());
}

// The CLC that the cluster has gone back to.
Status find_record(Exchange& exchange, const RecoveryPlan& plan, const std::vector<RecoveryPlan>& plans,
                   federation::ClcRecord* record) {
  const unsigned index = g_cluster.running.index;
  std::vector<Decision> decisions;
  SHADOWIB_TRY(read_decisions(exchange, g_job.info.epoch, index, &decisions));
  for (const Decision& decision : decisions) {
    const bool committed = decision.record.claim == federation::ClcRecord::Claim::kCommitted;
    if (!committed || decision.record.sn != plan.sns[index] || is_undone(plans, decision.record)) continue;
    *record = decision.record;
    return {};
  }
  return Status::of(Code::kCorrupt, 0, "CLC %u of cluster %s, to which recovery %llu leads, is not there",
                    plan.sns[index], g_cluster.name, static_cast<unsigned long long>(plan.number));
}

// Clusters that have come since the recovery looked for its line count as they are.
PerCluster widened(const PerCluster& numbers, std::uint32_t others) {
  PerCluster result(federation::kMaxClusters);
  result.of.fill(others);
  for (unsigned i = 0; i < numbers.clusters; ++i) result[i] = numbers[i];
  return result;
}

// The state of the backend's: what may be delivered, and what messages carry.
void tell(const federation::RunningCluster& cluster, federation::Policy policy) {
  if (g_agent.participant == nullptr) return;
  if (const Status s = g_agent.participant->tell_cluster(cluster, policy); !s.ok())
    log_line(LogLevel::kError, "%s", s.text());
}

void tell_present() {
  federation::RunningCluster cluster = g_cluster.running;
  if (g_leaves_before_first) cluster.sn = std::max(cluster.sn, 1u);
  tell(cluster, g_lets_all ? federation::Policy::kNone : g_cluster.policy);
}

// Delivers what waits into the running interval. Returns how many messages. Under `index` D does not make a message
// wait, but the SN: then nothing waits until the next CLC.
std::size_t deliver(const std::vector<federation::Stamp>& held) {
  std::size_t messages = 0;
  for (const federation::Stamp& stamp : held) {
    if (federation::judge(g_cluster.policy, g_cluster.running, stamp) != federation::Arrival::kHold) continue;
    ++messages;
    if (g_cluster.policy == federation::Policy::kIndex) {
      g_lets_all = true;
      continue;
    }
    federation::note_delivered(g_cluster.policy, &g_cluster.running, stamp);
  }
  return messages;
}

std::vector<federation::Stamp> held_now() {
  std::vector<federation::Stamp> held;
  if (g_agent.participant != nullptr) g_agent.participant->held_at_border(&held);
  return held;
}

// D takes what this process has delivered: under `index` nobody else knows of it. Returns what its log was trimmed
// for.
PerCluster look_at_border() {
  PerCluster delivered(federation::kMaxClusters), trimmed(federation::kMaxClusters);
  if (g_agent.participant != nullptr) g_agent.participant->border_facts(&delivered, &trimmed);
  g_cluster.running.depends.raise(delivered);
  return trimmed;
}

void freeze(bool frozen) {
  if (g_agent.participant != nullptr) g_agent.participant->freeze_border(frozen);
}

}  // namespace

bool is_in_cluster() { return g_cluster.name[0] != '\0'; }
const OwnCluster& own_cluster() { return g_cluster; }
const PerCluster& incarnations_over() { return g_over; }

Status read_cluster_choice() {
  g_cluster = OwnCluster();
  g_introduced = false;
  const std::string name = cluster_variable("SHADOWIB_CLUSTER");
  if (name.empty()) return {};
  if (!valid_cluster_name(name))
    return Status::of(Code::kUsage, EINVAL, "SHADOWIB_CLUSTER='%.60s' is no name of a cluster: %s", name.c_str(),
                      kClusterNameRule);
  if (const std::string policy = cluster_variable("SHADOWIB_CLUSTER_POLICY");
      !policy.empty() && !parse_policy(policy, &g_cluster.policy))
    return Status::of(Code::kUsage, EINVAL, "SHADOWIB_CLUSTER_POLICY='%.40s' is none of paper, vector and index",
                      policy.c_str());
  if (const char* hold = cluster_variable("SHADOWIB_CLUSTER_HOLD"); *hold != '\0') {
    char* end = nullptr;
    g_cluster.hold_s = std::strtod(hold, &end);
    if (*end != '\0' || !(g_cluster.hold_s > 0 && g_cluster.hold_s <= 1e6))
      return Status::of(Code::kUsage, EINVAL, "SHADOWIB_CLUSTER_HOLD='%.40s' is no number of seconds", hold);
  }
  if (const char* interval = cluster_variable("SHADOWIB_LOG_INTERVAL"); *interval != '\0') {
    char* end = nullptr;
    const double seconds = std::strtod(interval, &end);
    if (*end != '\0' || !(seconds >= 0 && seconds <= 1e6))
      return Status::of(Code::kUsage, EINVAL,
                        "SHADOWIB_LOG_INTERVAL='%.40s' is no number of seconds; give 0 to 1000000, 0 for none",
                        interval);
    g_cluster.log_interval_ns = static_cast<std::int64_t>(seconds * 1e9);
  }
  SHADOWIB_TRY(set_trace_path(cluster_variable("SHADOWIB_TRACE")));
  std::memcpy(g_cluster.name, name.c_str(), name.size() + 1);
  return {};
}

Status enter_cluster(const JobInfo& info, Exchange& exchange, const std::vector<std::string>& members, bool* waits) {
  if (std::strncmp(info.exchange, "pmix:", 5) == 0)
    return Status::of(
        Code::kUsage, EOPNOTSUPP,
        "job %.64s has a launcher's exchange (pmix:), which ends with the launcher: --cluster needs dir: "
        "or redis://",
        info.job);
  SHADOWIB_TRY(judge_members(info, members));
  SHADOWIB_TRY(claim_policy(info, exchange));
  unsigned index = 0;
  SHADOWIB_TRY(claim_index(info, exchange, &index));
  // A checkpoint that begins after this look waits until nobody is joining, and has this process among its members.
  if (is_alive(alive_path(info.directory, info.job, info.epoch, turn_lock(index)))) {
    *waits = true;
    return Status::of(Code::kBusy, EAGAIN, "a checkpoint of cluster %s is under way; its new process gave up waiting",
                      g_cluster.name);
  }
  begin_anew(index, info.generation);
  SHADOWIB_TRY(begin_with_words(exchange, info.epoch));
  std::vector<Decision> decisions;
  std::vector<RecoveryPlan> plans;
  SHADOWIB_TRY(read_decisions(exchange, info.epoch, index, &decisions));
  SHADOWIB_TRY(read_plans(exchange, info.epoch, &plans, nullptr));
  shut_gates_of(plans, index);
  pass_over_requests(exchange, info.epoch);
  for (const Decision& decision : decisions)
    if (decision.record.claim == federation::ClcRecord::Claim::kCommitted && !is_undone(plans, decision.record)) {
      g_cluster.running.sn = decision.record.sn;
      g_cluster.running.depends.of = decision.record.after.of;
    }
  return {};
}

void begin_cluster_anew(Exchange& exchange) {
  begin_anew(g_cluster.running.index, g_job.info.generation);
  g_cluster.last_word = 0;
  pass_over_requests(exchange, g_job.info.epoch);
  forget_wired();
}

Status begin_cluster_again(Exchange& exchange) {
  const char* epoch = g_job.info.epoch;
  const unsigned index = g_cluster.running.index;
  std::vector<RecoveryPlan> plans;
  SHADOWIB_TRY(read_plans(exchange, epoch, &plans, nullptr));
  const auto plan =
      std::find_if(plans.begin(), plans.end(), [](const RecoveryPlan& p) { return p.number == g_job.info.recovery; });
  if (plan == plans.end() || !plan->goes_back(index))
    return Status::of(Code::kCorrupt, 0, "recovery %u has no line by which cluster %s goes back", g_job.info.recovery,
                      g_cluster.name);
  federation::ClcRecord record;
  SHADOWIB_TRY(find_record(exchange, *plan, plans, &record));
  begin_anew(index, generation_of(epoch));
  g_over = PerCluster(federation::kMaxClusters);
  for (const unsigned cluster : plan->back)
    if (cluster != index) g_over[cluster] = plan->incarnations[cluster] - 1;
  shut_gates_of(plans, index);
  const PerCluster first = g_cluster.running.incarnations;
  record.after = widened(record.after, 0);
  federation::go_back(&g_cluster.running, record, widened(plan->sns, std::numeric_limits<std::uint32_t>::max()),
                      widened(plan->incarnations, first[index]));
  pass_over_requests(exchange, epoch);
  return begin_with_words(exchange, epoch);
}

bool take_word(const IncarnationWord& word) {
  federation::RunningCluster& running = g_cluster.running;
  if (word.n <= g_cluster.last_word) return true;
  if (running.index < word.incarnations.clusters &&
      word.incarnations[running.index] > running.incarnations[running.index])
    return false;
  g_cluster.last_word = word.n;
  for (unsigned i = 0; i < word.incarnations.clusters; ++i)
    if (word.incarnations[i] > running.incarnations[i]) let_go_of(i, word.incarnations[i] - 1);
  running.incarnations.raise(word.incarnations);
  tell_present();
  return true;
}

bool is_new_clc_request(unsigned cluster, std::uint64_t number) {
  if (!is_in_cluster() || cluster != g_cluster.running.index || number <= g_cluster.last_request) return false;
  g_cluster.last_request = number;
  return true;
}

bool is_new_room_request(std::uint64_t number) {
  if (number <= g_cluster.last_room) return false;
  g_cluster.last_room = number;
  return true;
}

void close_border(bool clc) {
  ++g_cluster.stops;
  if (!clc || g_still) return;
  g_still = true;
  freeze(true);
}

void let_held() {
  const bool first = g_cluster.running.sn == 0 && !g_leaves_before_first && waits_for_first_clc();
  if (first) g_leaves_before_first = true;
  if (deliver(held_now()) != 0 || first) tell_present();
}

void open_border() {
  if (g_still) freeze(false);
  g_still = false;
}

void keep_border_closed(std::uint64_t attempt, federation::Sn sn) {
  g_undecided = {attempt, sn};
  if (g_agent.participant != nullptr) g_agent.participant->note_undecided_clc();
}

bool is_undecided() { return g_undecided.attempt != 0; }

void settle_undecided() {
  Decision decided;
  if (!is_undecided() || !decide_as_void(g_undecided.attempt, g_undecided.sn, &decided).ok()) return;
  const bool committed = decided.record.claim == federation::ClcRecord::Claim::kCommitted;
  log_line(LogLevel::kWarn, "cluster %s: CLC %u %s; connections to other clusters go on", g_cluster.name,
           g_undecided.sn, committed ? "counts" : "does not count");
  g_undecided = Undecided();
  if (committed) adopt_clc(decided.record);
  open_border();
}

Status judge_border() {
  settle_undecided();
  if (!is_undecided()) return {};
  return Status::of(Code::kRefused, EAGAIN, "pid %d: nobody can tell yet whether CLC %u of cluster %s counts",
                    raw_getpid(), g_undecided.sn, g_cluster.name);
}

BorderReport report_border() {
  const PerCluster trimmed = look_at_border();
  BorderReport report{g_cluster.running, held_now()};
  report.trimmed.assign(trimmed.of.begin(), trimmed.of.end());
  for (unsigned i = 0; i < report.running.depends.clusters; ++i)
    report.logged_since.push_back(g_agent.participant != nullptr ? g_agent.participant->logged_since(i) : 0);
  return report;
}

void adopt_clc(const federation::ClcRecord& record) {
  trace_commit(record);
  g_cluster.running.sn = record.sn;
  g_cluster.running.depends.of = record.after.of;
  g_lets_all = g_leaves_before_first = false;
  tell_present();
  // The line of one cluster alone is its last CLC; further back nobody is let who is connected (judge_recovery()).
  if (g_agent.participant != nullptr) g_agent.participant->clc_collected(record.sn);
}

PerCluster delivered_so_far() {
  look_at_border();
  return g_cluster.running.depends;
}

Status decide_as_void(std::uint64_t attempt, federation::Sn sn, Decision* decided) {
  Decision mine;
  mine.record.cluster = g_cluster.running.index;
  mine.record.sn = sn;
  mine.record.incarnation = g_cluster.running.incarnations[g_cluster.running.index];
  mine.record.claim = federation::ClcRecord::Claim::kVoid;
  mine.by = "member " + std::to_string(g_job.info.member);
  return decide(*g_job.exchange, g_job.info.epoch, attempt, mine, decided);
}

void let_through() {
  g_cluster.delivered_early += deliver(held_now());
  g_leaves_before_first = g_cluster.running.sn == 0;
  tell_present();
}

Status introduce_cluster() {
  if (!is_in_cluster() || g_introduced || g_agent.participant == nullptr) return {};
  SHADOWIB_TRY(g_agent.participant->tell_cluster(g_cluster.running, g_cluster.policy));
  tell_gates();
  g_introduced = true;
  log_line(LogLevel::kInfo, "cluster %s, index %u, SN %u, incarnation %u", g_cluster.name, g_cluster.running.index,
           g_cluster.running.sn, g_cluster.running.incarnations[g_cluster.running.index]);
  return {};
}

void describe_own_cluster(JsonWriter& writer) {
  const PerCluster trimmed = look_at_border();
  const federation::RunningCluster& running = g_cluster.running;
  const std::vector<federation::Stamp> held = held_now();
  writer.key("cluster").begin_object().member("name", g_cluster.name).member("index", running.index);
  writer.member("sn", running.sn).member("incarnation", running.incarnations[running.index]);
  writer.key("incarnations").begin_array();
  for (unsigned i = 0; i < running.incarnations.clusters; ++i) writer.value(running.incarnations[i]);
  writer.end_array();
  writer.member("policy", policy_name(g_cluster.policy)).key("depends").begin_array();
  for (unsigned i = 0; i < running.depends.clusters; ++i) writer.value(running.depends[i]);
  writer.end_array().key("logged_since").begin_array();
  for (unsigned i = 0; i < running.depends.clusters; ++i)
    writer.value(g_agent.participant != nullptr ? g_agent.participant->logged_since(i) : std::uint64_t{0});
  writer.end_array().key("trimmed").begin_array();
  for (unsigned i = 0; i < trimmed.clusters; ++i) writer.value(trimmed[i]);
  writer.end_array().member("held", held.size()).member("delivered_early", g_cluster.delivered_early);
  writer.member("stops", g_cluster.stops);
  writer.member("log_bytes", g_agent.participant != nullptr ? g_agent.participant->log_bytes() : std::size_t{0});
  describe_lost_clusters(writer);
  describe_forced_clc(writer);
  writer.end_object();
}

}  // namespace shadowib
