#include "hooks/command/coordinator.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "hooks/command/coordinator_manifest.h"
#include "hooks/command/copies.h"
#include "hooks/command/federation_view.h"
#include "hooks/command/room.h"
#include "hooks/command/silent_member.h"
#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/descriptors.h"
#include "hooks/imager/shared_memory.h"
#include "hooks/job/collection.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/members.h"
#include "hooks/job/phase.h"
#include "hooks/job/protocol.h"
#include "hooks/raw/tasks.h"
#include "hooks/store/near_place.h"
#include "hooks/store/store.h"
#include "hooks/threads/fault.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/exchange/remove_below.h"

namespace shadowib {
namespace {

constexpr int kJoinWaitMs = 5000;
constexpr int kSliceMs = 50;             // between looks at the members' locks
constexpr int kEndsMs = 5;               // the same, when they are about to end
constexpr std::int64_t kLooksApart = 9;  // at least so many times as long as a look takes
constexpr std::int64_t kSilenceNs = 1'500'000'000;
constexpr int kResumeWaitMs = 10000;  // for members to say they go on, or to be dead
constexpr int kAttempts = 3;          // if a member leaves in an orderly way before anybody was stopped
constexpr int kPassingAttempts = 8;   // at least, if a member is in the middle of something that passes (EAGAIN)
constexpr std::int64_t kPassingNs =
    5'000'000'000;                                // and at least for so long: processes that MPI starts take seconds
constexpr int kTooLittleMs = 1000;                // of time for an attempt, to make anything of its coming too late
constexpr int kPauseMs = 25, kMostPauseMs = 400;  // before the second of them, more with each, and the longest
constexpr int kTurnMs = 20;                       // between tries to take a cluster's turn

std::string now_utc() {
  time_t now = ::time(nullptr);
  tm broken{};
  ::gmtime_r(&now, &broken);
  char text[40];
  ::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &broken);
  return text;
}

std::uint64_t most_bytes(const SetManifest& manifest, const NearHosts& hosts) {
  std::map<std::string, std::uint64_t> bytes;
  std::uint64_t most = 0;
  for (const SetMember& member : manifest.members)
    most = std::max(most, bytes[hosts.host_of.at(member.index)] += member.bytes);
  return most;
}

// One checkpoint as its command drives it. The members notice the end of this object by its lock.
class Drive {
 public:
  // `last`: what passes is not waited for any longer. `full`: stores that ran out of space in attempts before.
  Drive(const CheckpointOptions& options, JobView& view, int attempt, bool last, const std::vector<StoreSpec>& full)
      : options_(options),
        view_(view),
        attempt_(attempt),
        last_(last),
        plan_(options.store),
        near_place_(options.near_place),
        full_(full),
        compression_(options.compression) {}
  ~Drive() {
    close_owned_descriptor(lock_);
    for (const int turn : turns_) close_owned_descriptor(turn);
  }
  Drive(const Drive&) = delete;
  Drive& operator=(const Drive&) = delete;

  Status run(CheckpointReport* report);
  // Whether a checkpoint that ended so is worth another attempt: a member is in the middle of something that passes,
  // or left by itself before any was stopped.
  bool worth_another(const Status& status) const {
    return passes(status) ? !last_ : left_early_ && attempt_ < kAttempts;
  }
  static bool passes(const Status& status) { return status.code() == Code::kRefused && status.error() == EAGAIN; }
  // A store that was chosen had less room than was expected: what it lacks shows when it is written to.
  bool ran_out_of_space(const Status& status) const {
    return options_.choice && going_ && (status.error() == ENOSPC || status.error() == EDQUOT);
  }
  const StoreSpec& plan() const { return plan_; }
  // The job has another epoch by now.
  static bool is_outdated(const Status& status) { return status.code() == Code::kBusy && status.error() == ESTALE; }

 private:
  bool is_clc() const { return cluster_ != kWholeJob; }
  std::string which() const;
  Status find_cluster();
  Status take_turn(unsigned cluster);
  Status take_all_turns();
  Status take_number();
  Status find_members();
  Status judge_dead() const;
  Status keep_cluster();
  Status judge_number() const;
  Status request();
  Status join_borders();
  void describe_clusters(SetManifest* manifest) const;
  Status claim(const std::string& set_path);
  Status find_base();
  bool wants_keepers() const;
  Status drive(CheckpointReport* report);
  Status find_hosts();
  Status choose(const std::map<std::uint32_t, Fields>& rooms);
  // A CLC's members have the next SN before their threads run, and so wait for its commit.
  bool is_forked() const { return options_.forked && !options_.kill && !is_clc(); }
  Status judge_savers();
  void remove_near();
  // Waits until every member has published `what`/<index> and returns the values; fails as soon as one gives up or
  // dies.
  Status collect(const char* what, std::map<std::uint32_t, std::string>* values);
  Status check_members();
  Status check_locks();
  Status late();
  std::vector<std::uint32_t> indices() const;
  std::set<std::uint32_t> entered(const char* barrier);
  bool all_at(const char* barrier) { return entered(barrier).size() >= members_.size(); }
  Status judge_silent();
  Status failure_of_members(const std::string& abort_text);
  Status commit(CheckpointReport* report);
  void tell_outcome(const Fields& fields, bool ended_by_kill);
  void forget_earlier();
  void show_progress(std::size_t saved);
  std::string id() const { return checkpoint_id(cluster_, n_); }
  std::string key(const std::string& rest) const { return checkpoint_key_of(view_.epoch, id(), rest); }
  // Without the epoch.
  std::string below(const std::string& rest) const { return checkpoint_key_of("", id(), rest).substr(1); }
  Status get(const std::string& rest, Fields* fields, bool* found) {
    return view_.fields(below(rest), fields, found);
  }

  const CheckpointOptions& options_;
  JobView& view_;
  const int attempt_;
  const bool last_;
  std::vector<MemberStatus> members_;
  unsigned cluster_ = kWholeJob;
  FederationView federation_;
  SetCluster clc_;
  Fields decision_;  // over the CLC
  std::uint64_t n_ = 0;
  int lock_ = -1;
  std::vector<int> turns_;  // locks
  StoreSpec plan_;          // where images lie, with its place
  std::string near_place_;
  const std::vector<StoreSpec>& full_;
  Compression compression_;
  std::vector<StoreOption> considered_;
  std::unique_ptr<Store> store_;
  std::string staging_, set_id_;
  std::string base_;     // path of the set that an incremental checkpoint goes by
  MemberTables tables_;  // of descriptors
  NearHosts hosts_;      // of a near store
  std::uint32_t number_ = 0;
  Deadline deadline_ = Deadline::in_ms(0);
  std::int64_t silence_ns_ = 0;  // CLOCK_MONOTONIC of the next look at members that do not answer
  std::int64_t locks_ns_ = 0;    // and at their locks
  bool left_early_ = false, requested_ = false;
  bool unheard_ = false;  // a member cannot answer, so nobody waits for its word
  CheckpointProgress progress_;
  bool going_ = false;  // members have been told to save
};

std::string Drive::which() const { return is_clc() ? ", cluster " + options_.cluster + "," : ""; }

Status Drive::find_cluster() {
  if (options_.cluster.empty()) return {};
  SHADOWIB_TRY(read_federation(view_, &federation_));
  const ViewedCluster* cluster = federation_.find(options_.cluster);
  if (cluster == nullptr) return no_such_cluster(federation_, view_.job, options_.cluster);
  cluster_ = cluster->index;
  return take_turn(cluster_);
}

// A cluster's checkpoints come one by one, and those of the whole job are everybody's. Who joins the cluster
// meanwhile waits (agent/own_cluster.h).
Status Drive::take_turn(unsigned cluster) {
  const std::string path = view_.alive(turn_lock(cluster));
  const int turn = hold_alive_lock(path);
  if (turn < 0 && errno != EAGAIN)
    return Status::of(Code::kIo, errno, "cannot lock %.200s: %.60s", path.c_str(), std::strerror(errno));
  if (turn < 0)
    return Status::of(Code::kBusy, 0, "a checkpoint of cluster %.32s of job %.64s, or of the whole job, is under way",
                      federation_.clusters[cluster].name.c_str(), view_.job.c_str());
  turns_.push_back(turn);
  return {};
}

// Of a federation: those of all clusters, and then its members again, of whom none joins any more. A CLC that is
// under way has its own turn alone and asks for no other, so this command may wait for it with turns in its hand.
Status Drive::take_all_turns() {
  const auto has_cluster = [](const MemberStatus& m) { return !m.cluster.empty(); };
  if (is_clc() || std::none_of(members_.begin(), members_.end(), has_cluster)) return {};
  SHADOWIB_TRY(read_federation(view_, &federation_));
  for (const ViewedCluster& cluster : federation_.clusters) {
    Status status = take_turn(cluster.index);
    for (; status.code() == Code::kBusy && !deadline_.has_passed(); status = take_turn(cluster.index))
      raw_sleep_ms(kTurnMs);
    SHADOWIB_TRY(status);
  }
  silence_ns_ = monotonic_ns() + kSilenceNs;
  return find_members();
}

// The number of this checkpoint, and the right to it: whoever holds its lock. Numbers only grow.
Status Drive::take_number() {
  const std::string request = "control/" + request_name(cluster_);
  for (;;) {
    Fields fields;
    bool found = false;
    SHADOWIB_TRY(view_.fields(request, &fields, &found));
    const std::uint64_t latest = found ? field_number(fields, "n") : 0;
    const std::string running = view_.alive("ckpt" + checkpoint_id(cluster_, latest));
    if (latest > 0 && is_alive(running))
      return Status::of(Code::kBusy, 0, "a checkpoint of job %.64s%.40s is under way", view_.job.c_str(),
                        which().c_str());
    n_ = latest + 1;
    const std::string path = view_.alive("ckpt" + id());
    lock_ = hold_alive_lock(path);
    if (lock_ < 0 && errno == EAGAIN)
      return Status::of(Code::kBusy, 0, "a checkpoint of job %.64s%.40s is under way", view_.job.c_str(),
                        which().c_str());
    if (lock_ < 0)
      return Status::of(Code::kIo, errno, "cannot lock %.200s: %.60s", path.c_str(), std::strerror(errno));
    found = false;
    fields.clear();
    SHADOWIB_TRY(view_.fields(request, &fields, &found));
    if (!found || field_number(fields, "n") < n_) {
      // Nobody takes a number up to `latest` any more.
      if (latest > 0) ::unlink(running.c_str());
      return {};
    }
    close_owned_descriptor(lock_);  // somebody took that number, and ended, since we looked
    lock_ = -1;
  }
}

// A set without processes that come later could not be restarted as a whole. A restart brings back those of its set,
// whatever the first start was told.
Status Drive::judge_number() const {
  if (!view_.epoch.starts_with("g0-")) return {};
  std::uint64_t expected = 0;
  for (const MemberStatus& member : members_) expected = std::max(expected, member.expects);
  if (members_.size() >= expected) return {};
  return Status::of(Code::kBusy, 0,
                    "%zu of the %lu processes of job %.100s have joined (run --processes); the others are still "
                    "starting; try again",
                    members_.size(), static_cast<unsigned long>(expected), view_.job.c_str());
}

Status Drive::find_members() {
  SHADOWIB_TRY(wait_for_joining(view_, std::min(kJoinWaitMs, options_.timeout_ms)));
  SHADOWIB_TRY(list_members(view_, &members_));
  const Status complete = judge_number();
  SHADOWIB_TRY(keep_cluster());
  SHADOWIB_TRY(judge_dead());
  std::erase_if(members_, [](const MemberStatus& m) { return !m.alive; });
  if (members_.empty() && view_.is_outdated())
    return Status::of(Code::kBusy, ESTALE, "job %.100s was restarted meanwhile; try again", view_.job.c_str());
  if (members_.empty() && is_clc())
    return Status::of(Code::kNotFound, 0, "no process of cluster %.32s of job %.64s is alive",
                      options_.cluster.c_str(), view_.job.c_str());
  if (members_.empty())
    return Status::of(Code::kNotFound, ESRCH, "no process of job %.100s is alive (epoch %.60s)", view_.job.c_str(),
                      view_.epoch.c_str());
  SHADOWIB_TRY(complete);
  const auto other = std::find_if(members_.begin(), members_.end(),
                                  [this](const MemberStatus& m) { return m.meets != members_.front().meets; });
  if (other != members_.end())
    return Status::of(Code::kVersion, 0,
                      "%.90s and %.90s do not meet in a checkpoint: their versions of shadowib are %.20s and %.20s; "
                      "start all members of a job with one version",
                      describe(members_.front()).c_str(), describe(*other).c_str(), members_.front().version.c_str(),
                      other->version.c_str());
  return {};
}

// A cluster goes back to its newest CLC. One without a member that has died would leave it out for ever.
Status Drive::judge_dead() const {
  for (const MemberStatus& member : members_)
    if (!member.alive && !member.gone && !member.cluster.empty())
      return Status::of(
          Code::kRefused, EAGAIN,
          "%.150s of cluster %.32s has died; `shadowib restart --job %.64s` takes its cluster back to a "
          "checkpoint that has it",
          describe(member).c_str(), member.cluster.c_str(), view_.job.c_str());
  return {};
}

// The members of the CLC. A job that is mixed has come about past `run`.
Status Drive::keep_cluster() {
  if (!is_clc()) return {};
  for (const MemberStatus& member : members_)
    if (member.alive && member.cluster.empty())
      return Status::of(Code::kRefused, 0,
                        "%.150s is in no cluster, and the job has clusters: start all its processes with --cluster",
                        describe(member).c_str());
  std::erase_if(members_, [this](const MemberStatus& m) { return m.cluster != options_.cluster; });
  return {};
}

bool Drive::wants_keepers() const {
  if (options_.choice) return options_.keepers || options_.choice->survive > 0;
  return plan_.is_redundant() || (plan_.is_near() && options_.keepers);
}

// The newest set: members find out whether its images are of use.
Status Drive::find_base() {
  std::vector<StoredSet> sets;
  SHADOWIB_TRY(store_->list(&sets));
  std::uint32_t newest = 0;
  for (const StoredSet& set : sets) {
    if (!set.committed || set.job != set_owner(view_.job, options_.cluster) || set.number < newest) continue;
    newest = set.number;
    base_ = set.path;
  }
  return {};
}

Status Drive::request() {
  set_id_ = random_hex(16);
  store_ = open_directory_store(view_.directory);
  SHADOWIB_TRY(store_->stage(set_owner(view_.job, options_.cluster), &staging_, &number_));
  std::string list;
  for (const auto& member : members_) list += (list.empty() ? "" : ",") + std::to_string(member.index);
  requested_ = true;
  Fields request{{"n", std::to_string(n_)},
                 {"members", list},
                 {"staging", staging_},
                 {"set", set_id_},
                 {"near", plan_.is_near() ? near_place_ : ""},
                 {"keepers", wants_keepers() ? "1" : "0"},
                 {"timeout_ms", std::to_string(std::max(deadline_.left_ms(), 1))},
                 {"last", last_ ? "1" : "0"},
                 {"save", is_forked() ? "forked" : "stopped"},
                 {"kill", options_.kill ? "1" : "0"}};
  if (options_.incremental) {
    SHADOWIB_TRY(find_base());
    request["incremental"] = "1";
    request["base"] = base_;
  }
  if (options_.compression != Compression::kNone) request["compress"] = compression_name(options_.compression);
  if (options_.choice) {
    request["mem_place"] = options_.choice->mem_place;
    request["disk_place"] = options_.choice->disk_place;
  }
  if (is_clc()) request["cluster"] = std::to_string(cluster_);
  SHADOWIB_TRY(view_.exchange->publish(view_.key("control/" + request_name(cluster_)), encode_fields(request)));
  return fault_point(Phase::kRequested);
}

// What members hold when the cluster has settled shares one CLC. Members' D may differ: one delivers what the others
// have not heard of (--hold). The cluster's is the greatest.
Status Drive::join_borders() {
  if (!is_clc()) return {};
  std::map<std::uint32_t, std::string> words;
  SHADOWIB_TRY(collect("border", &words));
  // Nothing comes any more: messages so far are of clusters, and of SNs, that are there now.
  SHADOWIB_TRY(read_federation(view_, &federation_));
  federation::RunningCluster running;
  std::vector<federation::Stamp> held;
  bool first = true;
  for (const MemberStatus& member : members_) {
    Fields fields;
    BorderReport report;
    SHADOWIB_TRY(view_.decode(below("border/" + std::to_string(member.index)), words.at(member.index), &fields));
    SHADOWIB_TRY(decode_border(fields, &report));
    if (first) running = report.running;
    if (report.running.index != cluster_ || report.running.sn != running.sn ||
        !(report.running.incarnations == running.incarnations))
      return Status::of(Code::kAborted, 0, "%.150s has SN %u, and others of its cluster have SN %u; try again",
                        describe(member).c_str(), report.running.sn, running.sn);
    running.depends.raise(report.running.depends);
    held.insert(held.end(), report.held.begin(), report.held.end());
    first = false;
  }
  federation::Policy policy{};
  if (!parse_policy(federation_.policy, &policy))
    return Status::of(Code::kVersion, 0, "the clusters have policy %.40s, which this shadowib does not know",
                      federation_.policy.c_str());
  running.depends = bounded(federation_, running);
  SHADOWIB_TRY(federation::next_clc(policy, running, possible(federation_, held), &clc_.record));
  clc_.name = options_.cluster;
  if (members_.front().meets >= kFirstTellsWiring) clc_.wired.emplace();  // all are of one version
  for (const ViewedCluster& other : federation_.clusters)
    if (clc_.wired && other.index != cluster_ && federation_.wired.contains(std::minmax(cluster_, other.index)))
      clc_.wired->push_back(other.index);
  clc_.claim = clc_key(view_.epoch, cluster_, clc_name(clc_.record.incarnation, clc_.record.sn, n_));
  return {};
}

// A CLC says which one it is; a set of a whole federation, who was in which cluster.
void Drive::describe_clusters(SetManifest* manifest) const {
  if (is_clc()) manifest->cluster = clc_;
  if (is_clc() || !federation_.exists()) return;
  manifest->federation.policy = federation_.policy;
  for (const ViewedCluster& cluster : federation_.clusters) {
    manifest->federation.clusters.push_back({cluster.name, cluster.index, {}});
    for (const MemberStatus& member : members_)
      if (member.cluster == cluster.name) manifest->federation.clusters.back().members.push_back(member.index);
  }
}

// The set is there; now it is decided that it counts, unless a member has taken this command for dead and has decided
// that it does not.
Status Drive::claim(const std::string& set_path) {
  if (!is_clc()) return {};
  SHADOWIB_TRY(fault_point(Phase::kRenamed));
  Decision mine, decided;
  mine.record = clc_.record;
  mine.record.claim = federation::ClcRecord::Claim::kCommitted;
  mine.set = set_name(set_owner(view_.job, options_.cluster), number_);
  mine.set_id = set_id_;
  mine.at_ms = static_cast<std::int64_t>(::time(nullptr)) * 1000;
  mine.by = "command";
  SHADOWIB_TRY(decide(*view_.exchange, view_.epoch, n_, mine, &decided));
  decision_ = encode_decision(decided);
  if (decided.record.claim == federation::ClcRecord::Claim::kCommitted) return {};
  (void)store_->remove(set_path).ok();  // gc takes what stays
  return Status::of(Code::kAborted, 0, "%.60s has given this checkpoint up before it was committed",
                    decided.by.c_str());
}

std::vector<std::uint32_t> Drive::indices() const {
  std::vector<std::uint32_t> indices;
  for (const MemberStatus& member : members_) indices.push_back(member.index);
  return indices;
}

std::set<std::uint32_t> Drive::entered(const char* barrier) {
  std::vector<std::string> names;
  std::set<std::uint32_t> members;
  if (!view_.exchange->entered(key(std::string("b/") + barrier), &names).ok()) return members;
  for (const std::string& name : names)
    members.insert(static_cast<std::uint32_t>(std::strtoul(name.c_str(), nullptr, 10)));
  return members;
}

// What all have reached when all, or some, have come to a barrier.
constexpr struct {
  const char* barrier;
  bool all;
  Phase phase;
} kReached[] = {{"10", true, Phase::kHooks},
                {"20", true, Phase::kStop},
                {"30", true, Phase::kSettle},
                {"50", false, Phase::kQuiesce},
                {"50", true, Phase::kInspect}};

void Drive::show_progress(std::size_t saved) {
  CheckpointProgress now = progress_;
  now.members = static_cast<std::uint32_t>(members_.size());
  now.members_saved = static_cast<std::uint32_t>(saved);
  for (const auto& [barrier, all, phase] : kReached) {
    if (now.phase >= number_of(phase)) continue;
    if (all ? !all_at(barrier) : entered(barrier).empty()) break;
    now.phase = number_of(phase);
  }
  if (going_) now.phase = number_of(saved == members_.size() ? Phase::kCommit : Phase::kSave);
  const bool changed = now.phase != progress_.phase || now.members_saved != progress_.members_saved;
  progress_ = now;
  if (changed && options_.progress) options_.progress(now);
}

// The reason a member gave, rather than its echo in those who were told to give up.
Status Drive::failure_of_members(const std::string& abort_text) {
  Collection reasons(*view_.exchange, key("fail"), indices());
  SHADOWIB_TRY(reasons.look());
  for (const auto& member : members_) {
    const auto text = reasons.values().find(member.index);
    Fields fields;
    if (text == reasons.values().end()) continue;
    SHADOWIB_TRY(view_.decode(below("fail/" + std::to_string(member.index)), text->second, &fields));
    Status status = status_from_fields(fields);
    return Status::of(status.code(), status.error(), "%.120s: %.250s", describe(member).c_str(), status.text());
  }
  return Status::of(Code::kAborted, 0, "%.350s", abort_text.c_str());
}

Status Drive::check_locks() {
  const std::int64_t began = monotonic_ns();
  for (const auto& member : members_) {
    const std::string index = std::to_string(member.index);
    if (is_alive(view_.alive(index))) continue;
    std::string value;
    bool gone = false;
    SHADOWIB_TRY(view_.exchange->get(view_.key("gone/" + index), &value, &gone));
    left_early_ = gone && progress_.phase < number_of(Phase::kStop);
    return Status::of(Code::kAborted, 0, "%.200s %s during the checkpoint", describe(member).c_str(),
                      gone ? "ended" : "died");
  }
  // Of thousands of members, too, a look takes a small part of the time.
  const std::int64_t now = monotonic_ns();
  locks_ns_ = now + std::max(kSliceMs * std::int64_t{1'000'000}, kLooksApart * (now - began));
  return {};
}

Status Drive::check_members() {
  std::string text;
  bool aborted = false;
  SHADOWIB_TRY(view_.exchange->get(key("abort"), &text, &aborted));
  if (aborted) return failure_of_members(text);
  if (monotonic_ns() >= locks_ns_) SHADOWIB_TRY(check_locks());
  SHADOWIB_TRY(judge_silent());
  return deadline_.has_passed() ? late() : Status();
}

// The first member that has not come to where the others wait for it.
Status Drive::late() {
  const auto first_but = [this](const auto& there) {
    return std::find_if(members_.begin(), members_.end(),
                        [&](const MemberStatus& m) { return !there.contains(m.index); });
  };
  Collection heard(*view_.exchange, key("phase"), indices()), saved(*view_.exchange, key("saved"), indices());
  SHADOWIB_TRY(heard.look());
  SHADOWIB_TRY(saved.look());
  int phase = 0;
  auto slow = first_but(heard.values());
  if (slow == members_.end()) phase = number_of(Phase::kJoined);
  for (const auto& [barrier, all, next] : kReached) {
    if (!all || slow != members_.end()) continue;
    slow = first_but(entered(barrier));
    if (slow == members_.end()) phase = number_of(next);
  }
  if (slow == members_.end() && going_) phase = number_of(Phase::kSave), slow = first_but(saved.values());
  return Status::of(Code::kTimeout, 0, "the checkpoint did not end within %d ms; %.200s is in phase %d (%s)",
                    options_.timeout_ms, describe(slow != members_.end() ? *slow : members_.front()).c_str(), phase,
                    phase_text(phase).doing);
}

// A member that can answer does so at once.
Status Drive::judge_silent() {
  if (progress_.phase != 0 || monotonic_ns() < silence_ns_) return {};
  silence_ns_ = monotonic_ns() + kSilenceNs;
  Collection heard(*view_.exchange, key("phase"), indices());
  SHADOWIB_TRY(heard.look());
  for (const auto& member : members_) {
    if (!heard.missing().contains(member.index)) continue;
    Status silence = judge_silence(member);
    if (silence.ok()) continue;
    unheard_ = true;
    return silence;
  }
  return {};
}

Status Drive::collect(const char* what, std::map<std::uint32_t, std::string>* values) {
  Collection published(*view_.exchange, key(what), indices());
  for (;;) {
    SHADOWIB_TRY(published.look());
    show_progress(going_ ? published.values().size() : 0);
    if (published.complete()) break;
    SHADOWIB_TRY(check_members());
    SHADOWIB_TRY(published.wait(kSliceMs));
  }
  *values = std::move(published.values());
  return {};
}

Status Drive::commit(CheckpointReport* report) {
  MemberResults results;
  SHADOWIB_TRY(collect("saved", &results.saved));
  const std::int64_t saved_ns = monotonic_ns();
  SHADOWIB_TRY(collect("files", &results.files));
  SetManifest manifest{};
  manifest.set_id = set_id_;
  manifest.job = view_.job;
  manifest.number = number_;
  manifest.shadowib_version = SHADOWIB_VERSION;
  manifest.created = now_utc();
  describe_clusters(&manifest);
  report->compression = compression_;
  report->compressed_for_room = compression_ != options_.compression;
  SHADOWIB_TRY(describe_results(members_, results, &manifest, report));
  SHADOWIB_TRY(fault_point(Phase::kCollected));
  if (plan_.is_near()) describe_placement(plan_, near_place_, hosts_.host_of, &manifest);
  if (plan_.is_redundant()) {
    const auto make = plan_.has_parity() ? make_parities : make_copies;
    const std::int64_t began_ns = monotonic_ns();
    SHADOWIB_TRY(make(view_.directory, hosts_, deadline_.at_ns(), &manifest));
    report->copies_ns = monotonic_ns() - began_ns;
    SHADOWIB_TRY(fault_point(Phase::kCopied));
  }
  locks_ns_ = 0;
  SHADOWIB_TRY(check_members());
  SHADOWIB_TRY(commit_set(*store_, staging_, manifest, &report->set_path, tables_));
  SHADOWIB_TRY(claim(report->set_path));
  report->cluster = manifest.cluster;
  report->commit_ns = monotonic_ns() - saved_ns;
  report->set_id = set_id_;
  report->number = number_;
  report->generation = manifest.generation;
  report->store = manifest.placement.store;
  report->considered = considered_;
  report->incremental = options_.incremental;
  if (plan_.is_near()) report->most_bytes = most_bytes(manifest, hosts_);
  report->job = manifest.job;
  report->near_place = manifest.placement.place;
  return {};
}

// Publishes how it ended and waits, bounded, until every member goes on (or is dead).
void Drive::tell_outcome(const Fields& fields, bool ended_by_kill) {
  if (!view_.exchange->publish(key("outcome"), encode_fields(fields)).ok() || unheard_) return;
  const Deadline deadline = Deadline::in_ms(kResumeWaitMs);
  Collection done(*view_.exchange, key("done"), indices());
  while (!done.complete() && !deadline.has_passed()) {
    if (!ended_by_kill) (void)done.look().ok();
    for (const auto& member : members_)
      if (done.missing().contains(member.index) && !is_alive(view_.alive(std::to_string(member.index))))
        done.drop(member.index);
    if (!done.complete()) (void)done.wait(ended_by_kill ? kEndsMs : kSliceMs).ok();
  }
}

// What earlier checkpoints have left in the exchange: every member has been in this one since.
void Drive::forget_earlier() {
  std::vector<std::string> numbers;
  if (!view_.exchange->list(view_.key("ckpt"), &numbers).ok()) return;
  const std::string before = is_clc() ? std::to_string(cluster_) + "." : "";
  for (const std::string& name : numbers) {
    if (!name.starts_with(before)) continue;
    const std::string n = name.substr(before.size());
    if (n.find('.') == std::string::npos && std::strtoull(n.c_str(), nullptr, 10) < n_)
      (void)remove_below(view_.exchange->uri(), view_.key("ckpt/" + name)).ok();
  }
}

// Where images would stay; refused before anything is written if copies or parities could not be kept apart.
Status Drive::find_hosts() {
  if (!plan_.is_near() && !options_.choice) return {};
  std::map<std::uint32_t, Fields> rooms;
  for (const auto& member : members_) {
    Fields fields;
    bool found = false;
    SHADOWIB_TRY(get("near/" + std::to_string(member.index), &fields, &found));
    if (!found)
      return Status::of(Code::kVersion, 0,
                        "%.200s has a library of an older shadowib, which cannot keep its image near; use --store "
                        "central",
                        describe(member).c_str());
    hosts_.host_of[member.index] = field_text(fields, "host");
    hosts_.domains[field_text(fields, "host")] = field_text(fields, "domain");
    if (options_.choice) rooms[member.index] = std::move(fields);
  }
  if (options_.choice) SHADOWIB_TRY(choose(rooms));
  return check_hosts(plan_, hosts_);
}

// By what each member tells of its size and its host's room. If none has it, images may turn out smaller than they
// are known to: they are compressed, or by another amount than is recorded.
Status Drive::choose(const std::map<std::uint32_t, Fields>& rooms) {
  const StoreChoice& choice = *options_.choice;
  const auto choose_by = [&](double part) {
    StoreQuestion question = describe_room(choice, view_.directory, members_, rooms, hosts_, part);
    question.full = full_;
    considered_ = rank_stores(question);
    return choose_store_of(considered_, &plan_);
  };
  const double part = expected_part(choice.rates, compression_);
  if (const Status plain = choose_by(part); !plain.ok()) {
    const std::vector<StoreOption> considered = considered_;
    const bool is_plain = compression_ == Compression::kNone;
    const Compression smaller = is_plain ? Compression::kLz4 : compression_;
    const double recorded = expected_part(choice.rates, smaller);
    if ((is_plain && !choice.may_compress) || (!is_plain && recorded < 1) ||
        !choose_by(recorded < 1 ? recorded : kUsualPart).ok()) {
      considered_ = considered;
      return plain;
    }
    compression_ = smaller;
  }
  near_place_ = plan_.tier == Tier::kMem ? choice.mem_place : plan_.tier == Tier::kDisk ? choice.disk_place : "";
  return {};
}

// A library that does not know savers does not come to their barriers.
Status Drive::judge_savers() {
  if (!is_forked()) return {};
  Collection savers(*view_.exchange, key("save"), indices());
  SHADOWIB_TRY(savers.look());
  for (const auto& member : members_)
    if (savers.missing().contains(member.index))
      return Status::of(
          Code::kVersion, 0,
          "%.200s has a library of an older shadowib, which writes its image while it stands; use --save "
          "stopped",
          describe(member).c_str());
  return {};
}

void Drive::remove_near() {
  if (!plan_.is_near()) return;

  (void)remove_near_set(near_place_, view_.job, set_id_).ok();
  if (plan_.is_redundant()) drop_copies(view_.directory, view_.job, near_place_, set_id_);
}

Status Drive::drive(CheckpointReport* report) {
  SHADOWIB_TRY(request());
  SHADOWIB_TRY(collect("fds", &tables_));
  SHADOWIB_TRY(join_borders());
  SHADOWIB_TRY(match_descriptors(tables_));
  SHADOWIB_TRY(find_hosts());
  SHADOWIB_TRY(judge_savers());
  std::map<std::uint32_t, std::string> duties;
  SHADOWIB_TRY(assign_shared_memory(tables_, &duties));
  for (const auto& [member, duty] : duties)
    SHADOWIB_TRY(view_.exchange->publish(key("memory/" + std::to_string(member)), duty));
  SHADOWIB_TRY(fault_point(Phase::kMatched));
  Fields go;
  if (options_.choice) go = {{"near", near_place_}, {"compress", compression_name(compression_)}};
  if (is_clc()) go["sn"] = std::to_string(clc_.record.sn);
  SHADOWIB_TRY(view_.exchange->publish(key("go"), encode_fields(go)));
  going_ = true;
  return commit(report);
}

Status Drive::run(CheckpointReport* report) {
  deadline_ = Deadline::in_ms(options_.timeout_ms);
  silence_ns_ = monotonic_ns() + kSilenceNs;
  SHADOWIB_TRY(find_cluster());
  SHADOWIB_TRY(take_number());
  SHADOWIB_TRY(find_members());
  SHADOWIB_TRY(take_all_turns());
  *report = {};
  Status status = drive(report);
  if (!status.ok()) {
    if (requested_) {
      Fields reason = fields_of_status(status);
      reason["again"] = worth_another(status) ? "1" : "0";
      (void)view_.exchange->publish(key("fail/command"), encode_fields(reason)).ok();
      (void)view_.exchange->claim(key("abort"), status.text()).ok();
      tell_outcome({{"aborted", status.text()}}, false);
    }
    if (!staging_.empty()) (void)store_->discard(staging_).ok();
    remove_near();
    return status;
  }
  SHADOWIB_TRY(fault_point(Phase::kCommitted));
  if (options_.kill && options_.before_kill) options_.before_kill(*report);
  if (options_.kill)  // guests hear of it so; they would end by themselves, but later
    (void)view_.exchange->publish(end_key(view_.epoch), encode_fields({{"why", "its job was saved and ended"}})).ok();
  Fields outcome{{"committed", report->set_path}, {"kill", options_.kill ? "1" : "0"}};
  outcome.merge(decision_);
  tell_outcome(outcome, options_.kill);
  forget_earlier();
  return {};
}

}  // namespace

Status run_checkpoint(const CheckpointOptions& options, CheckpointReport* report) {
  const Deadline deadline = Deadline::in_ms(options.timeout_ms);
  const std::int64_t began_ns = monotonic_ns();
  CheckpointOptions left = options;  // in which all attempts have to end
  Status refusal;                    // of attempts before; tells more than that the rest was too little for another
  std::vector<StoreSpec> full;
  for (int attempt = 1;; ++attempt) {
    JobView view;
    SHADOWIB_TRY(open_job(options.directory, options.job, options.exchange, &view));
    const bool last = attempt >= kPassingAttempts && monotonic_ns() - began_ns >= kPassingNs;
    Drive drive(left, view, attempt, last, full);
    const Status status = drive.run(report);
    if (drive.ran_out_of_space(status) && !deadline.has_passed()) {
      full.push_back(drive.plan());
      left.timeout_ms = std::max(deadline.left_ms(), 1);
      --attempt;  // the members were not in the way
      continue;
    }
    if (Drive::is_outdated(status) && !deadline.has_passed()) {
      left.timeout_ms = std::max(deadline.left_ms(), 1);
      --attempt;  // it was none: nobody has been asked
      continue;
    }
    if (status.code() == Code::kTimeout && !refusal.ok() && left.timeout_ms < kTooLittleMs) return refusal;
    if (status.ok() || !drive.worth_another(status)) return status;
    if (Drive::passes(status)) {
      refusal = status;
      raw_sleep_ms(std::min(attempt * kPauseMs, kMostPauseMs));
    }
    left.timeout_ms = deadline.left_ms();
    if (left.timeout_ms == 0) return status;
  }
}

}  // namespace shadowib
