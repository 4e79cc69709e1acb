#include "hooks/command/coordinator.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "hooks/command/coordinator_drive.h"
#include "hooks/command/coordinator_manifest.h"
#include "hooks/command/copies.h"
#include "hooks/command/ending_signals.h"
#include "hooks/command/federation_view.h"
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
constexpr int kResumeWaitMs = 10000;     // for members to say they go on, or to be dead
constexpr int kTooLittleMs = 1000;       // of time for an attempt, to make anything of its coming too late
constexpr int kPassingAttempts = 8;      // at least, if a member is in the middle of something that passes (EAGAIN)
constexpr std::int64_t kPassingNs = 5'000'000'000;  // and at least so long: processes that MPI starts take seconds
constexpr int kPauseMs = 25, kMostPauseMs = 400;    // before the second attempt, more with each, and the longest

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

}  // namespace

std::string CheckpointDrive::which() const { return is_clc() ? ", cluster " + options_.cluster + "," : ""; }

// A set without processes that come later could not be restarted as a whole. A restart brings back those of its set,
// whatever the first start was told.
Status CheckpointDrive::judge_number() const {
  if (!view_.epoch.starts_with("g0-")) return {};
  std::uint64_t expected = 0;
  for (const MemberStatus& member : members_) expected = std::max(expected, member.expects);
  if (members_.size() >= expected) return {};
  return Status::of(Code::kBusy, 0,
                    "%zu of the %lu processes of job %.100s have joined (run --processes); the others are still "
                    "starting; try again",
                    members_.size(), static_cast<unsigned long>(expected), view_.job.c_str());
}

Status CheckpointDrive::find_members() {
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

// Also without copies: who removes old images asks the keepers of other hosts.
bool CheckpointDrive::wants_keepers() const {
  const bool several = std::any_of(members_.begin(), members_.end(),
                                   [this](const MemberStatus& m) { return m.host != members_.front().host; });
  if (options_.choice) return options_.keepers || options_.choice->survive > 0 || several;
  return plan_.is_redundant() || (plan_.is_near() && (options_.keepers || several));
}

// The newest set: members find out whether its images are of use.
Status CheckpointDrive::find_base() {
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

Status CheckpointDrive::request() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  clc_.asked_ms = static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
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
                 {"weighs", options_.save == SaveWay::kAuto ? "1" : "0"},
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

std::vector<std::uint32_t> CheckpointDrive::indices() const {
  std::vector<std::uint32_t> indices;
  for (const MemberStatus& member : members_) indices.push_back(member.index);
  return indices;
}

std::set<std::uint32_t> CheckpointDrive::entered(const char* barrier) {
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

void CheckpointDrive::show_progress(std::size_t saved) {
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
Status CheckpointDrive::failure_of_members(const std::string& abort_text) {
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

Status CheckpointDrive::check_locks() {
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

Status CheckpointDrive::check_members() {
  std::string text;
  bool aborted = false;
  SHADOWIB_TRY(view_.exchange->get(key("abort"), &text, &aborted));
  if (aborted) return failure_of_members(text);
  if (monotonic_ns() >= locks_ns_) SHADOWIB_TRY(check_locks());
  SHADOWIB_TRY(judge_silent());
  return deadline_.has_passed() ? late() : Status();
}

// The first member that has not come to where the others wait for it.
Status CheckpointDrive::late() {
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
Status CheckpointDrive::judge_silent() {
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

Status CheckpointDrive::collect(const char* what, std::map<std::uint32_t, std::string>* values) {
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

// What members have found out behind "go" is in their images, but not in the tables that they had told.
Status CheckpointDrive::complete_tables(const MemberResults& results) {
  Fields fields;
  for (const auto& [member, text] : results.saved)
    if (decode_fields(text, &fields)) SHADOWIB_TRY(add_comparisons(fields["compared"], &tables_[member]));
  return {};
}

Status CheckpointDrive::commit(CheckpointReport* report) {
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
  if (plan_.is_near()) SHADOWIB_TRY(complete_tables(results));
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
  if (const Status status = commit_set(*store_, staging_, manifest, &report->set_path, tables_); !status.ok()) {
    perhaps_there_ = !report->set_path.empty() && !is_clc();  // a CLC counts by a claim of its own
    return status;
  }
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
void CheckpointDrive::tell_outcome(const Fields& fields) {
  if (publish_outcome(fields).ok() && !unheard_) await_members(false);
}

// Members stand as long as this command lives, so an exchange that is away for a moment does no harm.
Status CheckpointDrive::publish_end(const Fields& outcome) {
  SHADOWIB_TRY(fault_point(Phase::kEndNoted));
  const Deadline deadline = Deadline::in_ms(kResumeWaitMs);
  for (;;) {
    const Status status = publish_outcome(outcome);
    if (status.ok() || deadline.has_passed()) return status;
    raw_sleep_ms(kSliceMs);
  }
}

// What the caller notes of the end holds only if members hear of it.
Status CheckpointDrive::tell_to_end(const Fields& outcome, const CheckpointReport& report) {
  const EndingSignalsWait wait;
  if (options_.at_kill) options_.at_kill(report);
  if (const Status status = publish_end(outcome); !status.ok()) {
    const Status no_end =
        Status::of(Code::kIo, 0, "%.150s is committed, but the job goes on: it could not be told to end: %.150s",
                   report.set_path.c_str(), status.text());
    if (options_.at_no_end) options_.at_no_end(report, no_end);
    return no_end;
  }
  // Guests hear of it so; they would end by themselves, but later.
  (void)view_.exchange->publish(end_key(view_.epoch), encode_fields({{"why", "its job was saved and ended"}})).ok();
  return {};
}

void CheckpointDrive::await_members(bool ended_by_kill) {
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
void CheckpointDrive::forget_earlier() {
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

Status CheckpointDrive::drive(CheckpointReport* report) {
  SHADOWIB_TRY(request());
  SHADOWIB_TRY(collect("fds", &tables_));
  SHADOWIB_TRY(join_borders());
  SHADOWIB_TRY(match_descriptors(tables_));
  SHADOWIB_TRY(find_hosts());
  Fields go;
  SHADOWIB_TRY(judge_savers(&go));
  std::map<std::uint32_t, std::string> duties;
  SHADOWIB_TRY(assign_shared_memory(tables_, &duties));
  SHADOWIB_TRY(assign_comparisons(tables_, &duties));
  for (const auto& [member, duty] : duties)
    SHADOWIB_TRY(view_.exchange->publish(key("memory/" + std::to_string(member)), duty));
  SHADOWIB_TRY(fault_point(Phase::kMatched));
  if (options_.choice) {
    go["near"] = near_place_;
    go["compress"] = compression_name(compression_);
  }
  if (is_clc()) go["sn"] = std::to_string(clc_.record.sn);
  SHADOWIB_TRY(view_.exchange->publish(key("go"), encode_fields(go)));
  going_ = true;
  return commit(report);
}

Status CheckpointDrive::run(CheckpointReport* report) {
  deadline_ = Deadline::in_ms(options_.timeout_ms);
  silence_ns_ = monotonic_ns() + kSilenceNs;
  SHADOWIB_TRY(find_cluster());
  SHADOWIB_TRY(take_number());
  SHADOWIB_TRY(find_members());
  SHADOWIB_TRY(take_all_turns());
  *report = {};
  Status status = drive(report);
  if (perhaps_there_) {  // its images must stay, so members hear of a set; they are not killed for it
    tell_outcome({{"committed", report->set_path}, {"kill", "0"}});
    return Status::of(status.code(), status.error(), "%.200s; is %.120s there? `shadowib verify` tells",
                      status.text(), report->set_path.c_str());
  }
  if (!status.ok()) {
    if (requested_) {
      Fields reason = fields_of_status(status);
      reason["again"] = worth_another(status) ? "1" : "0";
      (void)view_.exchange->publish(key("fail/command"), encode_fields(reason)).ok();
      (void)view_.exchange->claim(key("abort"), status.text()).ok();
      tell_outcome({{"aborted", status.text()}});
    }
    if (!staging_.empty()) (void)store_->discard(staging_).ok();
    remove_near();
    return status;
  }
  SHADOWIB_TRY(fault_point(Phase::kCommitted));
  if (options_.kill && options_.before_kill) options_.before_kill(*report);
  Fields outcome{{"committed", report->set_path}, {"kill", options_.kill ? "1" : "0"}};
  outcome.merge(decision_);
  if (options_.kill) {
    SHADOWIB_TRY(tell_to_end(outcome, *report));
    await_members(true);
  } else {
    tell_outcome(outcome);
  }
  forget_earlier();
  return {};
}

Status run_checkpoint(const CheckpointOptions& options, CheckpointReport* report) {
  const Deadline deadline = Deadline::in_ms(options.timeout_ms);
  const std::int64_t began_ns = monotonic_ns();
  CheckpointOptions left = options;  // in which all attempts have to end
  Status refusal;                    // of attempts before; tells more than that the rest was too little for another
  std::vector<StoreSpec> full;
  std::string why_stopped;
  for (int attempt = 1;; ++attempt) {
    JobView view;
    SHADOWIB_TRY(open_job(options.directory, options.job, options.exchange, &view));
    const bool last = (attempt >= kPassingAttempts && monotonic_ns() - began_ns >= kPassingNs) ||
                      left.timeout_ms < kTooLittleMs + kMostPauseMs;
    CheckpointDrive drive(left, view, attempt, last, full);
    const Status status = drive.run(report);
    if (drive.ran_out_of_space(status) && !deadline.has_passed()) {
      full.push_back(drive.plan());
      left.timeout_ms = std::max(deadline.left_ms(), 1);
      --attempt;  // the members were not in the way
      continue;
    }
    if (left.save == SaveWay::kAuto && drive.ran_out_of_memory(status) && !deadline.has_passed()) {
      left.save = SaveWay::kStopped;
      why_stopped = status.text();
      left.timeout_ms = std::max(deadline.left_ms(), 1);
      --attempt;
      continue;
    }
    if (left.save == SaveWay::kForked && drive.ran_out_of_memory(status))
      return Status::of(status.code(), status.error(), "%.350s; use --save auto or stopped", status.text());
    if (CheckpointDrive::is_outdated(status) && !deadline.has_passed()) {
      left.timeout_ms = std::max(deadline.left_ms(), 1);
      --attempt;  // it was none: nobody has been asked
      continue;
    }
    if (status.code() == Code::kTimeout && !refusal.ok() && left.timeout_ms < kTooLittleMs) return refusal;
    report->why_stopped = why_stopped;
    if (status.ok() || !drive.worth_another(status)) return status;
    if (CheckpointDrive::passes(status)) {
      refusal = status;
      raw_sleep_ms(std::min(attempt * kPauseMs, kMostPauseMs));
    }
    left.timeout_ms = deadline.left_ms();
    if (left.timeout_ms == 0) return status;
  }
}

}  // namespace shadowib
