#include "hooks/command/recovery.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "hooks/job/cluster.h"
#include "hooks/job/decisions.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/phase.h"
#include "hooks/raw/tasks.h"
#include "shadowib/base/json_value.h"
#include "shadowib/exchange/remove_below.h"

namespace shadowib {
namespace {

constexpr int kJoiningMs = 5000;
constexpr int kAnswersMs = 2000;     // for members' answers, a look
constexpr int kToldEndMs = 10000;    // for members to end that were told to
constexpr int kOtherMs = 1000;       // for another recovery to be over that may be at its end
constexpr int kRecoveryStepMs = 20;  // between looks at locks
constexpr int kLooksPauseMs = 200;   // between looks at a federation of which a commit is under way

Status cannot_lock(const std::string& path) {
  return Status::of(Code::kIo, errno, "cannot lock %.200s: %.60s", path.c_str(), std::strerror(errno));
}

void release(int* lock) {
  if (*lock >= 0) release_alive_lock(*lock);
  *lock = -1;
}

// A member that has heard the word says so by its incarnations.
bool has_heard(const MemberStatus& member, const federation::PerCluster& told) {
  Json state;
  if (!member.answered || !Json::parse(member.json, &state) || !state.contains("cluster")) return false;
  if (told.clusters == 0) return true;
  const Json& cluster = state["cluster"];
  if (!cluster.contains("incarnations") || !cluster["incarnations"].is_array()) return false;
  federation::PerCluster heard;
  for (const Json& entry : cluster["incarnations"])
    if (heard.clusters < federation::kMaxClusters && entry.is_number_unsigned())
      heard[heard.clusters++] = entry.get<std::uint32_t>();
  for (unsigned i = 0; i < told.clusters; ++i)
    if (i >= heard.clusters || heard[i] < told[i]) return false;
  return true;
}

}  // namespace

Recovery::Recovery(RecoveryOptions options) : options_(std::move(options)) {}

Recovery::~Recovery() {
  for (int& turn : turns_) release(&turn);
  release(&renewing_lock_);
  release(&recovery_lock_);
}

std::size_t Recovery::members() const {
  std::size_t members = 0;
  for (const RecoveredCluster& cluster : back_) members += cluster.manifest.members.size();
  return members;
}

// Nobody joins from now on. Who was joining is a member, or has seen that it has to wait.
Status Recovery::take_locks() {
  const JobPaths paths = job_paths(view_.directory, options_.job);
  const std::string path = paths.alive + "/recovery";
  const Deadline other = Deadline::in_ms(kOtherMs);
  while ((recovery_lock_ = hold_alive_lock(path)) < 0) {
    if (errno != EAGAIN) return cannot_lock(path);
    // `gc` has this lock alone, while it removes sets.
    if (deadline_.has_passed() || (other.has_passed() && is_alive(paths.renewing)))
      return Status::of(Code::kBusy, EAGAIN, "clusters of job %.64s are just being recovered by another command",
                        options_.job.c_str());
    raw_sleep_ms(kRecoveryStepMs);
  }
  renewing_lock_ = hold_alive_lock(paths.renewing);
  if (renewing_lock_ < 0 && errno == EAGAIN)
    return Status::of(Code::kBusy, EAGAIN, "job %.64s is just being restarted by another command",
                      options_.job.c_str());
  if (renewing_lock_ < 0) return cannot_lock(paths.renewing);
  return wait_for_joining(view_, std::min(kJoiningMs, options_.timeout_ms));
}

// A CLC that is under way ends by itself: its command holds the turn until then.
Status Recovery::take_turns() {
  turns_.assign(federation_.clusters.size(), -1);
  for (const ViewedCluster& cluster : federation_.clusters) {
    const std::string path = view_.alive(turn_lock(cluster.index));
    int& turn = turns_[cluster.index];
    while ((turn = hold_alive_lock(path)) < 0) {
      if (errno != EAGAIN) return cannot_lock(path);
      if (deadline_.has_passed())
        return Status::of(Code::kBusy, 0, "a checkpoint of cluster %.32s of job %.64s is still under way",
                          cluster.name.c_str(), options_.job.c_str());
      raw_sleep_ms(kRecoveryStepMs);
    }
  }
  return {};
}

// Members that live and are not to end have to answer, and to have heard which incarnations live.
Status Recovery::judge_silence(const std::vector<MemberStatus>& members) const {
  for (const MemberStatus& member : members) {
    if (!member.alive || member.gone || failed_.contains(member.cluster_index)) continue;
    if (member.cluster.empty())
      return Status::of(Code::kRefused, 0, "%.150s is in no cluster, and the job has clusters",
                        describe(member).c_str());
    if (!has_heard(member, word_.incarnations))
      return Status::of(
          Code::kTimeout, 0,
          "%.150s of cluster %.32s lives and does not answer, so nobody knows what it has had of others; "
          "if it is lost, end it, or name its cluster, too",
          describe(member).c_str(), member.cluster.c_str());
  }
  return {};
}

// Members that were just told of a commit agree a moment later.
Status Recovery::look() {
  for (;;) {
    std::string epoch;
    SHADOWIB_TRY(query_status(options_.directory, options_.job, options_.exchange, kAnswersMs, &members_, &epoch));
    if (epoch != view_.epoch)
      return Status::of(Code::kBusy, ESTALE, "job %.64s was restarted meanwhile; try again", options_.job.c_str());
    SHADOWIB_TRY(read_federation(view_, &federation_));
    if (!federation_.exists()) return no_such_cluster(federation_, options_.job, "");
    add_answers(members_, &federation_);
    find_failed();
    histories_ = histories_of(federation_);
    for (const unsigned cluster : failed_) histories_[cluster].running.reset();
    Status status = judge_silence(members_);
    if (status.ok()) status = federation::check_histories(histories_);
    if (status.ok() || status.code() == Code::kRefused || deadline_.has_passed()) return status;
    raw_sleep_ms(kLooksPauseMs);
  }
}

void Recovery::find_failed() {
  for (const MemberStatus& member : members_)
    if (!member.alive && !member.gone && !member.cluster.empty()) failed_.insert(member.cluster_index);
  if (const RecoveryPlan* plan = federation_.unreached(); plan != nullptr)
    failed_.insert(plan->back.begin(), plan->back.end());
}

Status Recovery::add_cluster(const ViewedCluster& cluster, federation::Sn sn) {
  const auto clc = std::find_if(cluster.clcs.begin(), cluster.clcs.end(),
                                [sn](const ViewedClc& c) { return c.kept && c.decision.record.sn == sn; });
  if (clc == cluster.clcs.end())
    return Status::of(Code::kNotFound, 0, "cluster %.32s has to go to CLC %u, of which there is no set",
                      cluster.name.c_str(), sn);
  RecoveredCluster back{cluster.name, cluster.index, sn, {}, 0, cluster.members > 0};
  SHADOWIB_TRY(read_manifest(sets_path(view_.directory) + "/" + clc->decision.set, &back.manifest));
  if (back.manifest.set_id != clc->decision.set_id || !back.manifest.cluster)
    return Status::of(Code::kCorrupt, 0, "set %.100s is not the one that CLC %u of cluster %.32s was committed as",
                      clc->decision.set.c_str(), sn, cluster.name.c_str());
  back.lost_s = std::max(0.0, static_cast<double>(::time(nullptr)) - static_cast<double>(clc->decision.at_ms) / 1000);
  back_.push_back(std::move(back));
  return {};
}

Status Recovery::find_line() {
  back_.clear();
  if (const Status s = federation::find_line(histories_, &line_); !s.ok()) {
    if (s.code() != Code::kNotFound) return s;
    std::string names;
    for (const std::string& name : federation_.names())
      names += (names.empty() ? "" : ", ") + std::to_string(federation_.find(name)->index) + " is " + name;
    return Status::of(
        Code::kNotFound, 0,
        "there is no line: %.120s (%.60s); `shadowib restart %.64s` starts the newest set of all clusters", s.text(),
        names.c_str(), options_.job.c_str());
  }
  for (const ViewedCluster& cluster : federation_.clusters)
    if (const auto& place = line_.clusters[cluster.index]; !place.stays) SHADOWIB_TRY(add_cluster(cluster, place.sn));
  return {};
}

namespace {

// Of the member's connections to each cluster, and their logs (MemberFacts).
std::vector<std::optional<std::uint64_t>> logged_since(const MemberStatus& member) {
  Json state;
  if (!member.answered || !Json::parse(member.json, &state) || !state.contains("cluster")) return {};
  const Json& own = state["cluster"];
  if (!own.contains("logged_since") || !own["logged_since"].is_array()) return {};
  std::vector<std::optional<std::uint64_t>> clusters;
  for (const Json& since : own["logged_since"])
    clusters.push_back(since.is_number_unsigned() ? std::optional(since.get<std::uint64_t>()) : std::nullopt);
  return clusters;
}

// Likewise.
std::vector<federation::Sn> trimmed(const MemberStatus& member) {
  Json state;
  if (!member.answered || !Json::parse(member.json, &state) || !state.contains("cluster")) return {};
  const Json& own = state["cluster"];
  if (!own.contains("trimmed") || !own["trimmed"].is_array()) return {};
  std::vector<federation::Sn> clusters;
  for (const Json& sn : own["trimmed"])
    clusters.push_back(sn.is_number_unsigned() ? sn.get<federation::Sn>() : ~federation::Sn{0});
  return clusters;
}

federation::MemberFacts facts_of(const MemberStatus& member) {
  federation::MemberFacts facts{member.index, describe(member), member.host};
  if (!member.cluster.empty()) facts.cluster = member.cluster_index;
  facts.gone = member.gone;
  facts.logged_since = logged_since(member);
  facts.trimmed = trimmed(member);
  return facts;
}

federation::BackFacts facts_of(const RecoveredCluster& cluster) {
  const SetCluster& saved = *cluster.manifest.cluster;
  federation::BackFacts facts;
  facts.cluster = cluster.index;
  facts.sn = cluster.sn;
  facts.set = name_of(cluster.manifest);
  for (const SetMember& member : cluster.manifest.members) facts.members.push_back({member.index, member.host});
  facts.wired = saved.wired;
  facts.asked_ms = saved.asked_ms;
  facts.logged_since = saved.logged_since;
  facts.trimmed = saved.trimmed;
  return facts;
}

// Files by which members have told each other what they send again (agent/gate_board.h): those of earlier recoveries.
// All members have heard of this one.
void remove_gate_boards(const std::string& directory, const std::string& kept) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("gates-") && name != kept) ::unlink(entry.path().c_str());
  }
}

}  // namespace

federation::RecoveryFacts Recovery::facts() const {
  federation::RecoveryFacts facts;
  for (const ViewedCluster& cluster : federation_.clusters) {
    federation::RecoveryFacts::Cluster& known = facts.clusters.emplace_back();
    known.name = cluster.name;
    for (const ViewedClc& clc : cluster.clcs) known.clcs.push_back(clc.decision.record);
  }
  for (const RecoveredCluster& cluster : back_) facts.back.push_back(facts_of(cluster));
  for (const MemberStatus& member : members_) facts.members.push_back(facts_of(member));
  for (const RecoveryPlan& plan : federation_.plans) facts.earlier.push_back({plan.back, plan.sns, plan.replaying});
  facts.wired = federation_.wired;
  facts.tells_wiring = federation_.tells_wiring;
  return facts;
}

Status Recovery::prepare() {
  deadline_ = Deadline::in_ms(options_.timeout_ms);
  SHADOWIB_TRY(open_job(options_.directory, options_.job, options_.exchange, &view_));
  SHADOWIB_TRY(read_federation(view_, &federation_));
  if (!federation_.exists()) return no_such_cluster(federation_, options_.job, "");
  for (const std::string& name : options_.clusters) {
    const ViewedCluster* cluster = federation_.find(name);
    if (cluster == nullptr) return no_such_cluster(federation_, options_.job, name);
    failed_.insert(cluster->index);
  }
  SHADOWIB_TRY(take_locks());
  SHADOWIB_TRY(read_federation(view_, &federation_));  // the last to join may have been the first of its cluster
  SHADOWIB_TRY(take_turns());
  SHADOWIB_TRY(read_word(*view_.exchange, view_.epoch, &word_));
  SHADOWIB_TRY(decide_what_is_left());
  SHADOWIB_TRY(look());
  if (failed_.empty())
    return Status::of(Code::kBusy, 0,
                      "no cluster of job %.64s has failed: all members that have not ended are alive; --cluster NAME "
                      "takes one back all the same",
                      options_.job.c_str());
  SHADOWIB_TRY(find_line());
  SHADOWIB_TRY(federation::judge_recovery(facts()));
  return options_.check ? options_.check(back_) : Status();
}

Status Recovery::claim_number() {
  std::vector<RecoveryPlan> plans;
  std::uint64_t latest = 0;
  SHADOWIB_TRY(read_plans(*view_.exchange, view_.epoch, &plans, &latest));
  std::string clusters;
  for (const unsigned cluster : failed_) clusters += (clusters.empty() ? "" : ",") + std::to_string(cluster);
  plan_.number = latest + 1;
  SHADOWIB_TRY(view_.exchange->claim(recovery_key(view_.epoch, plan_.number, "failed"),
                                     encode_fields({{"clusters", clusters}})));
  return fault_point(Phase::kRecoveryClaimed);
}

// CLCs whose command has died before its decision are void: we hold the turns, so nobody else can commit them.
Status Recovery::decide_what_is_left() {
  std::vector<ListedSet> sets;
  SHADOWIB_TRY(list_sets(view_.directory, &sets));
  for (const ListedSet& set : sets) {
    if (!set.status.ok() || !set.manifest.cluster || set.manifest.job != options_.job) continue;
    const SetCluster& cluster = *set.manifest.cluster;
    const std::size_t dot = cluster.claim.rfind('.');
    if (!cluster.claim.starts_with(view_.epoch + "/") || dot == std::string::npos) continue;
    Decision mine, decided;
    mine.record.cluster = cluster.record.cluster;
    mine.record.sn = cluster.record.sn;
    mine.record.incarnation = cluster.record.incarnation;
    mine.record.claim = federation::ClcRecord::Claim::kVoid;
    mine.by = "recovery";
    const std::uint64_t attempt = std::strtoull(cluster.claim.c_str() + dot + 1, nullptr, 10);
    SHADOWIB_TRY(decide(*view_.exchange, view_.epoch, attempt, mine, &decided));
  }
  return {};
}

// Members of clusters that have failed end, and the others let go of them. Each is told once.
Status Recovery::tell() {
  const auto clusters = static_cast<unsigned>(federation_.clusters.size());
  federation::PerCluster next(clusters);
  const federation::PerCluster seen = incarnations_of(federation_);
  for (unsigned i = 0; i < clusters; ++i) {
    next[i] = std::max(seen[i], generation_of(view_.epoch) + 1);
    if (i < word_.incarnations.clusters) next[i] = std::max(next[i], word_.incarnations[i]);
    if (failed_.contains(i) && told_.insert(i).second) ++next[i];
  }
  word_ = {word_.n + 1, next};
  return view_.exchange->publish(incarnations_key(view_.epoch), encode_fields(encode_word(word_)));
}

Status Recovery::await_ends() {
  const Deadline ends = Deadline::in_ms(kToldEndMs);
  for (const MemberStatus& member : members_) {
    if (!failed_.contains(member.cluster_index) || member.cluster.empty()) continue;
    const std::string lock = view_.alive(std::to_string(member.index));
    while (is_alive(lock) && !ends.has_passed()) raw_sleep_ms(kRecoveryStepMs);
    if (!is_alive(lock)) continue;
    if (!options_.fenced)
      return Status::of(
          Code::kRefused, 0,
          "%.150s of cluster %.32s was told to end and still holds its lock; end it, or, if its host is "
          "lost for good, vouch for that by --fenced",
          describe(member).c_str(), member.cluster.c_str());
    ::unlink(lock.c_str());
  }
  return {};
}

Status Recovery::publish_line() {
  plan_.sns = line_.sns(histories_);
  plan_.replaying = federation::list_replaying(facts());
  plan_.incarnations = word_.incarnations;
  for (const RecoveredCluster& cluster : back_) {
    plan_.back.push_back(cluster.index);
    plan_.generation = std::max(plan_.generation, cluster.manifest.generation + 1);
  }
  return view_.exchange->claim(recovery_key(view_.epoch, plan_.number, "line"), encode_fields(encode_plan(plan_)));
}

// What members that come back have left in the exchange since their CLC. Members that have joined since are no more.
// Two clusters that go back to before they were connected are not connected.
Status Recovery::tidy() {
  Exchange& exchange = *view_.exchange;
  SHADOWIB_TRY(exchange.remove(death_key(view_.epoch)));  // of a rank that may come back now
  remove_gate_boards(job_paths(view_.directory, options_.job).top, gate_board_name(view_.epoch, plan_.number));
  for (const RecoveredCluster& cluster : back_) {
    std::set<std::uint32_t> coming;
    for (const SetMember& member : cluster.manifest.members) coming.insert(member.index);
    for (const MemberStatus& member : members_) {
      if (member.cluster != cluster.name) continue;
      const std::string gone = view_.key("gone/" + std::to_string(member.index));
      if (!coming.contains(member.index)) {
        SHADOWIB_TRY(exchange.publish(gone, encode_fields({{"why", "its cluster went back to before it joined"}})));
        continue;
      }
      SHADOWIB_TRY(exchange.remove(gone));
      SHADOWIB_TRY(remove_below(exchange.uri(), view_.key("late/" + std::to_string(member.index))));
    }
    for (const RecoveredCluster& other : back_)
      if (other.index != cluster.index && !federation::were_wired(facts_of(cluster), facts_of(other)))
        SHADOWIB_TRY(exchange.remove(wired_key(view_.epoch, cluster.index, other.index)));
  }
  return {};
}

Status Recovery::begin() {
  deadline_ = Deadline::in_ms(options_.timeout_ms);
  SHADOWIB_TRY(claim_number());
  for (std::size_t before = 0; before != failed_.size();) {
    // Whatever can refuse is asked before members are told to end: of the clusters that have come to the line, too.
    SHADOWIB_TRY(look());
    SHADOWIB_TRY(find_line());
    SHADOWIB_TRY(federation::judge_recovery(facts()));
    if (before != 0 && options_.check) SHADOWIB_TRY(options_.check(back_));
    SHADOWIB_TRY(tell());
    SHADOWIB_TRY(await_ends());
    SHADOWIB_TRY(look());
    SHADOWIB_TRY(find_line());
    before = told_.size();
    for (const RecoveredCluster& cluster : back_) failed_.insert(cluster.index);
  }
  SHADOWIB_TRY(federation::judge_recovery(facts()));
  SHADOWIB_TRY(fault_point(Phase::kRecoveryEnded));
  SHADOWIB_TRY(publish_line());
  SHADOWIB_TRY(fault_point(Phase::kRecoveryLine));
  SHADOWIB_TRY(tidy());
  for (const ViewedCluster& cluster : federation_.clusters)
    if (!plan_.goes_back(cluster.index) && cluster.index < turns_.size()) release(&turns_[cluster.index]);
  return {};
}

Status Recovery::list_not_running(std::set<std::uint32_t>* members) {
  std::vector<std::string> done;
  SHADOWIB_TRY(view_.exchange->list(restart_prefix(view_.epoch, plan_.number) + "done", &done));
  members->clear();
  for (const RecoveredCluster& cluster : back_)
    for (const SetMember& member : cluster.manifest.members) members->insert(member.index);
  for (const std::string& name : done)
    members->erase(static_cast<std::uint32_t>(std::strtoul(name.c_str(), nullptr, 10)));
  return {};
}

// Once all have come to the barrier "go" nothing keeps the others from running. One that ends before it says so will
// never say it.
Status Recovery::watch(bool* all_run) {
  std::set<std::uint32_t> missing;
  *all_run = plan_.reached;
  if (plan_.reached) return {};
  SHADOWIB_TRY(list_not_running(&missing));
  if (!missing.empty()) {
    std::vector<std::string> ready;
    SHADOWIB_TRY(view_.exchange->entered(restart_prefix(view_.epoch, plan_.number) + "b/go", &ready));
    if (ready.size() < members()) return {};
    for (const std::uint32_t member : missing)
      if (is_alive(view_.alive(std::to_string(member)))) return {};
    SHADOWIB_TRY(list_not_running(&died_));  // some may have said it since
  }
  SHADOWIB_TRY(fault_point(Phase::kRecoveryRuns));
  SHADOWIB_TRY(view_.exchange->publish(recovery_key(view_.epoch, plan_.number, "reached"), encode_fields({})));
  *all_run = plan_.reached = true;
  for (int& turn : turns_) release(&turn);
  release(&renewing_lock_);
  release(&recovery_lock_);
  return {};
}

std::string Recovery::cluster_of(std::uint32_t member) const {
  for (const MemberStatus& known : members_)
    if (known.index == member) return known.cluster;
  return {};
}

Status Recovery::read_gates(std::map<std::uint32_t, std::string>* left) const {
  left->clear();
  for (const std::uint32_t member : plan_.replaying) {
    const std::string name = std::to_string(member);
    Fields fields;
    bool found = false;
    SHADOWIB_TRY(view_.fields(recovery_key(view_.epoch, plan_.number, "gate/" + name), &fields, &found));
    const std::string said = found ? field_text(fields, "left") : "";
    if ((!found || !said.empty()) && is_alive(view_.alive(name))) (*left)[member] = said;
  }
  return {};
}

}  // namespace shadowib
