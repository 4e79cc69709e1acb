// What has become of the job: it goes on, has failed, has a result, or was saved.
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <utility>

#include "shadowib/base/lock.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/restart_hosts.h"
#include "shadowib/cli/sets.h"
#include "shadowib/cli/supervise/broken_off.h"
#include "shadowib/cli/supervise/past_lives.h"
#include "shadowib/cli/supervise/supervisor.h"

namespace shadowib::cli {
namespace {

constexpr std::int64_t kGraceNs = 5'000'000'000;
constexpr std::int64_t kUnreadableNs = 60'000'000'000;
constexpr char kLostHostText[] = "a host was lost";

// When a command last began to write to it: each has a file of its own. A quick one's lock may come and go unseen.
std::int64_t history_written_ns(const std::string& directory, const std::string& job) {
  struct stat info {};
  if (::stat(history_path(directory, job).c_str(), &info) != 0) return 0;
  return info.st_mtim.tv_sec * std::int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
}

}  // namespace

bool Supervisor::judge(int wait_status, End* end) {
  Lives lives;
  if (!look_who_lives(settings_.common.directory, settings_.job, &lives).ok()) return false;  // look again
  dead_before_.merge(lives.elsewhere());
  const MemberLife* dead = lives.first_dead(dead_before_);
  const bool begins = job_.is_restart() && job_.has_command() && lives.epoch == epoch_before_;
  const bool over =
      !job_.has_command() && !lives.any_alive() &&
      !(adopted_ && (!lives.other.empty() || !started_here(settings_.common.directory, settings_.job).empty()));
  if (begins) return false;
  checkpoints_.note_members(lives.members.size());
  if (!end_the_rest(lives)) {
    *end = End::kSignal;
    result_ = kBySignal + ending_signal_;
    return true;
  }
  const bool lost_host = has_lost_host(wait_status);
  const bool has_died = dead != nullptr && ending_signal_ == 0;
  const std::int64_t written_ns = history_written_ns(settings_.common.directory, settings_.job);
  if (!lives.other.empty() || written_ns != std::exchange(history_written_ns_, written_ns)) command_seen_ = true;
  if (lives.other.empty() && command_seen_ && dead == nullptr && lives.any_alive())
    command_seen_ = !note_broken_off();
  if (!lost_host && !has_died && !over) return false;
  std::vector<PastEvent> events;
  if (const Status s = read_events(settings_, &events); !s.ok() && ending_signal_ == 0) {
    if (unreadable_since_ns_ == 0) tell(settings_, s.text());
    if (unreadable_since_ns_ == 0) unreadable_since_ns_ = monotonic_ns();
    // A death and a save look alike: look again. In the end it is a death. The next start needs the history, too, and
    // gives up some time.
    if (monotonic_ns() - unreadable_since_ns_ < kUnreadableNs) return false;
  }
  unreadable_since_ns_ = 0;
  if (was_saved(events)) {  // also if the signal has asked for it (run --kill-on)
    if (!over) return false;
    *end = End::kSaved;
  } else if (lost_host) {
    *end = failed(kLostHostText, nullptr, wait_status);
  } else if (has_died) {
    const std::string how = describe_life(*dead) + " died";
    // The members of a lost host may be seen to die before the restart, which knows of the host, has told.
    if (job_.is_restart() && !settings_.hosts.empty()) job_.await_last_word(how, &wait_status);
    *end = has_lost_host(wait_status) ? failed(kLostHostText, nullptr, wait_status) : failed(how, dead, wait_status);
  } else {
    *end = judge_end(lives, wait_status);
  }
  return true;
}

// By what a restart over hosts has said at its end.
bool Supervisor::has_lost_host(int wait_status) const {
  return job_.is_restart() && !job_.has_command() && WIFEXITED(wait_status) &&
         WEXITSTATUS(wait_status) == kLostHost && ending_signal_ == 0;
}

// Nobody lives any more, and it was no save.
Supervisor::End Supervisor::judge_end(const Lives& lives, int wait_status) {
  const bool killed = WIFSIGNALED(wait_status);
  const int code = killed ? kBySignal + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  const bool members_failed = job_.is_restart() && code == kRestartedProcessFailed;
  result_ = code;
  if (ending_signal_ != 0) {
    if (members_failed || adopted_) result_ = kBySignal + ending_signal_;
    return End::kSignal;
  }
  if (job_.is_restart() && lives.epoch == epoch_before_)
    return not_restarted(killed ? "the restart was killed" : "restart exited with " + std::to_string(code), code);
  if (killed)
    return failed("the command was killed by signal " + std::to_string(WTERMSIG(wait_status)), nullptr, wait_status);
  if (adopted_ || members_failed) {
    result_ = lives.exit_status();
    if (result_ < 0 || (members_failed && result_ == 0))
      return failed("a process ended, and nobody knows how", nullptr, wait_status);
  } else if (job_.is_restart() && code != 0) {
    return failed("restart exited with " + std::to_string(code), nullptr, wait_status);
  }
  if (settings_.retry_on.test(static_cast<unsigned>(result_) & 0xff))
    return failed("the job ended with exit code " + std::to_string(result_) + " (--retry-on)", nullptr, wait_status);
  return End::kResult;
}

Supervisor::End Supervisor::not_restarted(const std::string& how, int code) {
  why_ = set_name(settings_.job, set_) + ": " + how;
  tell(settings_, why_);
  on_event_.run("refused", why_, name_of_set());
  bounds_.not_restarted(set_, is_of_the_set(code));
  return End::kNotRestarted;
}

Supervisor::End Supervisor::failed(const std::string& how, const MemberLife* who, int wait_status) {
  why_ = how;
  planned_set_ = kFromTheBeginning;
  checkpoints_.stop();
  if (!came_back()) job_.await_last_word(how, &wait_status);
  const bool is_noted = job_.is_restart() && !job_.has_command() && WIFEXITED(wait_status) &&
                        WEXITSTATUS(wait_status) == kRestartedProcessFailed;
  if (!is_noted) note_failure(how, who);
  note_committed();
  if (came_back())
    bounds_.failed(set_);
  else
    bounds_.not_restarted(set_,
                          !job_.has_command() && WIFEXITED(wait_status) && is_of_the_set(WEXITSTATUS(wait_status)));
  tell(settings_, how + "; the others are ended");
  on_event_.run("failure", how, name_of_set());
  (void)end_everyone(how);
  return End::kFailure;
}

void Supervisor::note_failure(const std::string& how, const MemberLife* who) const {
  HistoryEvent failure("failure");
  if (who != nullptr) failure.add("member", who->index).add("process", who->record.pid);
  failure.add("how", how);
  if (const double age_s = age_of_newest_set(settings_.common.directory, settings_.job); age_s >= 0)
    failure.add("lost_s", age_s);
  note_event(settings_.common.directory, settings_.job, failure);
}

// A restart that was refused after it had made processes has not tried the set.
bool Supervisor::came_back() const {
  return !job_.is_restart() || count_events(events_of(settings_), "restart") > restarts_before_;
}

// An operator, a signal or a batch system has had it saved and ended, since the present start.
bool Supervisor::was_saved(const std::vector<PastEvent>& events) const {
  return was_told_to_end() || ends_on_request(events) > saves_before_;
}

bool Supervisor::was_told_to_end() const {
  Lives lives;
  return look_who_lives(settings_.common.directory, settings_.job, &lives).ok() && lives.epoch != epoch_before_ &&
         were_told_to_end(settings_.common, settings_.job, lives);
}

// A command that was killed between what it noted in the history and what it had to tell the members: they go on, and
// what becomes of them later is no save. False: look again. A command that has told them ends after them. So members
// that live once its lock is free were told nothing.
bool Supervisor::note_broken_off() {
  std::vector<PastEvent> events;
  if (!read_events(settings_, &events).ok()) return false;
  if (ends_on_request(events) <= saves_before_) return true;
  Lives lives;
  if (!look_who_lives(settings_.common.directory, settings_.job, &lives).ok() || !lives.other.empty()) return false;
  // All that the command has noted is there now that it has gone. Or another command has begun meanwhile.
  const std::size_t before = events.size();
  if (!read_events(settings_, &events).ok() || events.size() != before) return false;
  if (!lives.any_alive() || lives.first_dead(dead_before_) != nullptr || was_told_to_end()) return true;
  const PastEvent& saved = *last_end_on_request(events);
  constexpr char kWhy[] = "the command was broken off, and the job goes on";
  tell(settings_, saved.text("set") + ": " + kWhy);
  note_no_end(settings_.common.directory, settings_.job, saved, kWhy);
  saves_before_ = read_events(settings_, &events).ok() ? ends_on_request(events) : saves_before_ + 1;
  return true;
}

// Members that outlive the process that was told have not heard of it. One that saves the job has its time. False:
// one more signal has come while they were waited for.
bool Supervisor::end_the_rest(const Lives& lives) {
  if (ending_signal_ == 0 || !lives.any_alive() || job_.has_head() ||
      checkpoint_running(settings_.common.directory, settings_.job)) {
    alone_since_ns_ = 0;
  } else if (alone_since_ns_ == 0) {
    alone_since_ns_ = monotonic_ns();
  } else if (monotonic_ns() - alone_since_ns_ > kGraceNs) {
    return end_everyone("the supervisor was asked to end the job", ByTheTime::kToo) || left_s() <= 0;
  }
  return true;
}

}  // namespace shadowib::cli
