#include "shadowib/cli/supervise/tender.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "hooks/job/cluster.h"
#include "hooks/job/members.h"
#include "hooks/store/store.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/supervise/checkpoints.h"
#include "shadowib/cli/supervise/hosts.h"
#include "shadowib/cli/supervise/processes.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace {

constexpr int kTendLookMs = 100;
constexpr std::int64_t kBusyNs = 1'000'000'000;  // before the next try, if another command was in the way

std::string list_of(const std::set<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ",") + name;
  return list;
}

std::string clusters_text(const std::set<std::string>& names) {
  return (names.size() == 1 ? "cluster " : "clusters ") + list_of(names);
}

std::string text_of_end(int wait_status) {
  return WIFSIGNALED(wait_status) ? "was killed by signal " + std::to_string(WTERMSIG(wait_status))
                                  : "exited with " + std::to_string(WEXITSTATUS(wait_status));
}

Status open_view_of(const SuperviseSettings& settings, JobView* view) {
  std::string uri = exchange_of(settings.common, settings.job);
  SHADOWIB_TRY(settle_exchange(job_paths(settings.common.directory, settings.job).password, &uri));
  return open_job(settings.common.directory, settings.job, uri, view);
}

}  // namespace

bool Tender::is_tended(const MemberLife& member) const {
  return member.record.joined && (clusters_.empty() || clusters_.contains(member.record.cluster));
}

Bounds& Tender::bounds_of(const std::string& cluster) {
  return bounds_.try_emplace(cluster, Bounds(settings_.most_restarts)).first->second;
}

std::uint32_t Tender::newest_clc(const std::string& cluster) const {
  std::vector<StoredSet> stored;
  std::uint32_t newest = kFromTheBeginning;
  if (!open_directory_store(settings_.common.directory)->list(&stored).ok()) return newest;
  for (const StoredSet& set : stored)
    if (set.committed && set.job == set_owner(settings_.job, cluster)) newest = std::max(newest, set.number);
  return newest;
}

// One line for people, or one of JSON, as the job's history has them.
void Tender::say(const char* event, const Names& clusters, const std::string& text) const {
  tell(settings_, text);
  if (!settings_.common.json) return;
  Json names = Json::array();
  for (const std::string& name : clusters) names.push_back(name);
  std::printf("%s\n", HistoryEvent(event).add("clusters", names).add("text", text).line().c_str());
  std::fflush(stdout);
}

int Tender::run() {
  say("watching", clusters_,
      clusters_.empty() ? "all clusters are looked after"
                        : clusters_text(clusters_) + (clusters_.size() == 1 ? " is" : " are") + " looked after");
  for (;;) {
    Lives lives;
    std::optional<int> code;
    if (look_who_lives(settings_.common.directory, settings_.job, &lives).ok()) code = judge(lives);
    bool by_terminal = false;
    for (int signal; !code && (signal = signals_.take(&by_terminal)) != 0;) {
      if (!HeldSignals::ends(signal)) continue;
      say("stopped", clusters_, "a signal ends the watching; the job goes on");
      code = kBySignal + signal;
    }
    if (code) {
      on_event_.finish();
      return *code;
    }
    signals_.wait(kTendLookMs);
  }
}

bool Tender::is_recovering() const {
  return std::any_of(commands_.begin(), commands_.end(), [](const Recovering& c) { return !c.runs; });
}

std::optional<int> Tender::judge(const Lives& lives) {
  if (!step_commands()) return give_up(why_);
  if (is_recovering()) return {};
  if (lives.epoch != epoch_) {  // the whole job was restarted
    epoch_ = lives.epoch;
    bounds_.clear();
    failing_.clear();
    known_.clear();
    looked_.clear();
    next_try_ns_.clear();
    busy_until_ns_ = 0;
  }
  const Names dead = new_deaths(lives);
  if (dead.empty()) {  // another command may have taken back what had failed
    failing_.clear();
    looked_.clear();
    return judge_end(lives);
  }
  if (monotonic_ns() < busy_until_ns_ || (dead == looked_ && !is_due())) return {};
  if (was_saved(lives.epoch)) return judge_end(lives);
  const JobPaths paths = job_paths(settings_.common.directory, settings_.job);
  if (is_alive(paths.alive + "/recovery") || is_alive(paths.renewing)) return {};  // another command is at it
  Dead failed;
  if (const Status status = find_failed(lives, &failed); !status.ok()) {
    if (told_ != status.text()) tell(settings_, status.text());
    told_ = status.text();
    busy_until_ns_ = monotonic_ns() + kBusyNs;
    return {};
  }
  told_.clear();
  std::erase_if(failing_, [&failed](const std::string& name) { return !failed.contains(name); });
  if (failed.empty()) return {};
  looked_ = dead;
  if (!note_failures(failed))
    return give_up(clusters_text(failing_) + " has failed too often without a newer checkpoint; the last: " + why_);
  if (is_due() && !start_recovery()) return give_up(why_);
  return {};
}

Tender::Names Tender::new_deaths(const Lives& lives) const {
  Names names;
  for (const MemberLife& m : lives.members)
    if (m.state == MemberLife::kDied && is_tended(m) && !known_.contains(lives.name_of(m)))
      names.insert(lives.name_of(m));
  return names;
}

// One command takes back all that have failed, so the one that waits least decides.
bool Tender::is_due() const {
  return std::any_of(failing_.begin(), failing_.end(), [this](const std::string& name) {
    const auto next = next_try_ns_.find(name);
    return next == next_try_ns_.end() || monotonic_ns() >= next->second;
  });
}

// A member that has joined after the CLC to which its cluster went back is dead, and does not come again: the
// exchange says that it is gone.
Status Tender::find_failed(const Lives& lives, Dead* failed) {
  JobView view;
  std::vector<MemberStatus> members;
  SHADOWIB_TRY(open_view_of(settings_, &view));
  SHADOWIB_TRY(list_members(view, &members));
  if (view.epoch != lives.epoch) return {};
  for (const MemberLife& life : lives.members) {
    if (life.state != MemberLife::kDied || !is_tended(life) || known_.contains(lives.name_of(life))) continue;
    const auto member =
        std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.index == life.index; });
    if (member == members.end() || member->gone || member->cluster.empty())
      known_.insert(lives.name_of(life));
    else if (!member->alive)
      failed->emplace(member->cluster, life);
  }
  return {};
}

// A failure counts once, until the cluster runs again. False: one has failed too often.
bool Tender::note_failures(const Dead& failed) {
  bool goes_on = true;
  for (const auto& [cluster, dead] : failed) {
    if (!failing_.insert(cluster).second) continue;
    why_ = describe_life(dead) + " of cluster " + cluster + " died";
    if (!is_noted(dead))  // else by the command that had brought it back
      note_event(settings_.common.directory, settings_.job,
                 HistoryEvent("failure").add("member", dead.index).add("process", dead.record.pid).add("how", why_));
    Bounds& bounds = bounds_of(cluster);
    bounds.committed(newest_clc(cluster));
    bounds.failed(newest_clc(cluster));
    goes_on = goes_on && !bounds.exhausted();
    say("failure", {cluster}, why_);
    on_event_.run("failure", why_, "");
    put_off(cluster);
  }
  return goes_on;
}

bool Tender::is_noted(const MemberLife& dead) const {
  const std::vector<PastEvent> events = events_of(settings_);
  return std::any_of(events.begin(), events.end(), [&dead](const PastEvent& e) {
    return e.name == "failure" && e.number("member") == dead.index && e.number("process") == dead.record.pid;
  });
}

void Tender::put_off(const std::string& cluster) {
  const std::int64_t pause_ms = bounds_of(cluster).pause_ms();
  next_try_ns_[cluster] = monotonic_ns() + pause_ms * 1'000'000;
  char text[64];
  std::snprintf(text, sizeof(text), "next try in %.1f s", static_cast<double>(pause_ms) / 1e3);
  if (pause_ms > 0) tell(settings_, text);
}

// The command finds those that have failed: what another one has brought back meanwhile must not be ended again.
bool Tender::start_recovery() {
  std::vector<std::string> words{"restart", "--job", settings_.job};
  words.insert(words.end(), words_.begin(), words_.end());
  if (const auto hosts = hosts_for_a_start(settings_); !hosts.empty()) {
    words.insert(words.end(), {"--hosts", command_line::hosts_text(hosts), "--rsh", settings_.rsh});
    if (settings_.lease_s > 0) words.insert(words.end(), {"--lease", std::to_string(settings_.lease_s)});
  }
  say("recovering", failing_, "taking " + clusters_text(failing_) + " back");
  Recovering command{.pid = -1, .clusters = failing_, .began_ms = wall_clock_ns() / 1'000'000};
  const int output = settings_.common.json ? STDERR_FILENO : -1;
  const Status status = start_process(command_line_of(settings_, std::move(words)), output, &command.pid,
                                      TakenOutput::kWithoutErrors, ProcessGroup::kOwn);
  if (status.ok()) {
    commands_.push_back(command);
    return true;
  }
  why_ = status.text();
  tell(settings_, why_);
  return count_failed_try(failing_);
}

bool Tender::count_failed_try(const Names& clusters) {
  bool goes_on = true;
  for (const std::string& cluster : clusters) {
    bounds_of(cluster).not_restarted(newest_clc(cluster), false);
    goes_on = goes_on && !bounds_of(cluster).exhausted();
    if (goes_on) put_off(cluster);
  }
  return goes_on;
}

// The command says so in the history, by its own name.
bool Tender::has_recovered(const Recovering& command) const {
  const std::vector<PastEvent> events = events_of(settings_);
  return std::any_of(events.begin(), events.end(), [&command](const PastEvent& e) {
    return e.name == "recovery" && e.number("pid") == command.pid && e.time_ms >= command.began_ms;
  });
}

bool Tender::step_commands() {
  bool goes_on = true;
  for (Recovering& command : commands_) {
    // In this order: one that has ended has told of all before.
    int wait_status = 0;
    const bool ended = ::waitpid(command.pid, &wait_status, WNOHANG) == command.pid;
    if (!command.runs && has_recovered(command)) {
      command.runs = true;
      for (const std::string& cluster : command.clusters) failing_.erase(cluster);
      say("recovered", command.clusters, clusters_text(command.clusters) + " run again");
      on_event_.run("restart", why_, "");
    }
    if (ended && !command.runs) goes_on = not_recovered(command, wait_status) && goes_on;
    if (ended) command.pid = -1;
  }
  std::erase_if(commands_, [](const Recovering& c) { return c.pid < 0; });
  return goes_on;
}

bool Tender::not_recovered(const Recovering& command, int wait_status) {
  const int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
  why_ = "the recovery of " + clusters_text(command.clusters) + " " + text_of_end(wait_status);
  say("not_recovered", command.clusters, why_);
  on_event_.run("refused", why_, "");
  if (code == static_cast<int>(Code::kBusy)) {
    busy_until_ns_ = monotonic_ns() + kBusyNs;
    looked_.clear();
    return true;
  }
  return !is_of_the_set(code) && count_failed_try(command.clusters);
}

// An operator has had the whole job saved and ended.
bool Tender::was_saved(const std::string& epoch) const {
  std::string uri = exchange_of(settings_.common, settings_.job);
  return settle_exchange(job_paths(settings_.common.directory, settings_.job).password, &uri).ok() &&
         !saved_before_end(uri, epoch).empty();
}

std::optional<int> Tender::judge_end(const Lives& lives) {
  Lives tended;
  bool saved = false;
  for (const MemberLife& member : lives.members) {
    if (!is_tended(member) || known_.contains(lives.name_of(member))) continue;
    tended.members.push_back(member);
    saved = saved || member.state == MemberLife::kDied;
  }
  const bool starts = clusters_.empty() && !started_here(settings_.common.directory, settings_.job).empty();
  if (tended.any_alive() || !commands_.empty() || !lives.other.empty() || starts || tended.members.empty()) return {};
  if (saved) {
    say("saved", clusters_, "the job is saved and has ended; shadowib restart starts it again");
    on_event_.run("saved", "", "");
    return kSavedAndEnded;
  }
  const int status = std::max(tended.exit_status(), 0);  // nobody knows how an orderly end by another program was
  say("ended", clusters_, "all members have ended");
  return status;
}

int Tender::give_up(const std::string& why) {
  note_event(settings_.common.directory, settings_.job, HistoryEvent("gave_up").add("error", why));
  say("given_up", failing_, "given up: " + why);
  on_event_.run("given_up", why, "");
  return kGivenUp;
}

}  // namespace shadowib::cli
