#include "shadowib/cli/supervise/supervisor.h"

#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cinttypes>
#include <limits>
#include <utility>

#include "hooks/job/members.h"
#include "hooks/store/store.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/metrics.h"
#include "shadowib/cli/sets.h"
#include "shadowib/cli/supervise/processes.h"
#include "shadowib/cli/supervise/time_limit.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace {

constexpr int kLookMs = 100;
constexpr std::int64_t kGraceNs = 5'000'000'000;
constexpr int kBySignal = 128;

// The last thing that is known is a set after which the job was ended on request.
bool ended_as_planned(const std::vector<PastEvent>& events) {
  bool planned = false;
  for (const PastEvent& e : events) {
    if (e.name == "checkpoint") planned = e.number("kill") != 0;
    if (e.name == "started" || e.name == "restart" || e.name == "failure") planned = false;
  }
  return planned;
}

std::int64_t ends_on_request(const std::vector<PastEvent>& events) {
  return std::count_if(events.begin(), events.end(),
                       [](const PastEvent& e) { return e.name == "checkpoint" && e.number("kill") != 0; });
}

std::int64_t count(const std::vector<PastEvent>& events, std::string_view name) {
  return std::count_if(events.begin(), events.end(), [name](const PastEvent& e) { return e.name == name; });
}

// The set that the job's present life began with.
std::uint32_t set_of_life(const std::vector<PastEvent>& events) {
  std::uint32_t set = kFromTheBeginning;
  for (const PastEvent& e : events) {
    if (e.name == "started") set = kFromTheBeginning;
    if (e.name == "restart") set = static_cast<std::uint32_t>(e.number("number"));
  }
  return set;
}

std::string seconds(std::int64_t ms) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", static_cast<double>(ms) / 1e3);
  return text;
}

}  // namespace

int Supervisor::run() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what CMD leaves behind is to be found
  const std::vector<PastEvent> events = events_of(settings_);
  bounds_.remember(events);
  unplanned_ = !ended_as_planned(events);
  for (;;) {
    if (!start()) return give_up(why_);
    if (ending_signal_ != 0) return kBySignal + ending_signal_;
    if (time_over_) {
      tell(settings_, "the time is over (--until); start this command again to go on");
      return kSavedAndEnded;
    }
    const End end = watch();
    checkpoints_.stop();
    keep_metrics(settings_.metrics, settings_.common.directory, settings_.job);
    switch (end) {
      case End::kResult:
        if (!job_.is_restart())
          note_event(settings_.common.directory, settings_.job, HistoryEvent("ended").add("exit_code", result_));
        return result_;
      case End::kSignal:
        return result_;
      case End::kSaved:
        tell(settings_, "the job is saved and has ended; start this command again to go on");
        return kSavedAndEnded;
      case End::kTimeOver:
        end_for_the_time();
        return kSavedAndEnded;
      case End::kFailure:
      case End::kNotRestarted:
        break;
    }
    if (ending_signal_ != 0) return kBySignal + ending_signal_;
    if (bounds_.exhausted())
      return give_up(std::to_string(bounds_.in_a_row()) + " failures without a newer set; the last: " + why_);
    if (!pause(bounds_.pause_ms())) return kBySignal + ending_signal_;
  }
}

std::vector<std::uint32_t> Supervisor::sets() const {
  std::vector<StoredSet> stored;
  std::vector<std::uint32_t> numbers;
  if (!open_directory_store(settings_.common.directory)->list(&stored).ok()) return {};
  for (const StoredSet& set : stored)
    if (set.committed && set.job == settings_.job) numbers.push_back(set.number);
  return numbers;
}

// Whoever lives is not started a second time. Waits for commands that are about to bring members back.
bool Supervisor::adopt() {
  for (bool told = false; ending_signal_ == 0;) {
    Lives lives;
    const Status status = look_who_lives(settings_.common.directory, settings_.job, &lives);
    const bool starts = !started_here(settings_.common.directory, settings_.job).empty();
    if (status.ok() && (lives.any_alive() || starts)) {
      job_.adopt();
      dead_before_.clear();
      epoch_before_ = lives.any_alive() ? "" : lives.epoch;
      tell(settings_, "the job runs already; it is looked after from now on");
      return true;
    }
    dead_before_ = lives.dead();
    epoch_before_ = lives.epoch;
    if (status.ok() && lives.other.empty()) return false;
    if (!told) tell(settings_, status.ok() ? "waiting for the command that holds " + lives.other : status.text());
    told = true;
    take_signals();
    signals_.wait(kLookMs);
  }
  return false;
}

// False: there is nothing to start from any more; why_ says so.
bool Supervisor::start() {
  const std::vector<PastEvent> events = events_of(settings_);
  saves_before_ = ends_on_request(events);
  restarts_before_ = count(events, "restart");
  adopted_ = adopt();
  if (adopted_) set_ = set_of_life(events_of(settings_));
  note_committed();
  time_over_ = !adopted_ && time_is_short();
  if (adopted_ || ending_signal_ != 0 || time_over_) return true;
  const std::vector<std::uint32_t> order = bounds_.order(sets());
  set_ = order.empty() ? kFromTheBeginning : order.front();
  if (!order.empty() && bounds_.all_refused(order)) {
    why_ = "none of the job's " + std::to_string(order.size()) + " sets can be restarted; the last reason: " + why_;
    return false;
  }
  const bool again = std::exchange(started_once_, true);
  if (set_ != kFromTheBeginning)
    tell(settings_, "restarting " + set_name(settings_.job, set_) +
                        (unplanned_ && settings_.roll_back ? ", files rolled back" : ""));
  else if (again)
    tell(settings_, "starting from the beginning: there is no set yet");
  const Status status =
      set_ != kFromTheBeginning ? job_.restart(set_, unplanned_ && settings_.roll_back) : job_.start_command();
  if (!status.ok()) why_ = status.text();
  return status.ok();
}

Supervisor::End Supervisor::watch() {
  checkpoints_.begin();
  for (int wait_status = 0;;) {
    int status = 0;
    if (job_.command_ended(&status)) wait_status = status;
    End end;
    if (judge(wait_status, &end)) return end;
    if (left_s() <= 0 && ending_signal_ == 0) return End::kTimeOver;
    take_checkpoints();
    take_signals();
    signals_.wait(kLookMs);
    job_.reap_orphans(checkpoints_.command());
  }
}

void Supervisor::note_committed() {
  for (const std::uint32_t number : sets()) bounds_.committed(number);
  if (settings_.until_s != 0)
    last_save_s_ = last_save_s(events_of(settings_), settings_.timeout_s,
                               static_cast<double>(settings_.until_s - settings_.begun_s));
}

// One that is under way when the time gets short comes to its end first: the last one may write less then.
void Supervisor::take_checkpoints() {
  const bool last = time_is_short();
  if (last && !std::exchange(hurried_, true)) checkpoints_.hurry();
  const bool due = ending_signal_ == 0 && checkpoints_.due();
  if (due && last)
    checkpoints_.start_last(bounds_.to_keep(settings_.keep, sets()), std::max(left_s(), 1.0));
  else if (due)
    checkpoints_.start(bounds_.to_keep(settings_.keep, sets()));
  if (checkpoints_.step()) note_committed();
}

double Supervisor::left_s() const {
  if (settings_.until_s == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(settings_.until_s) - static_cast<double>(wall_clock_ns()) / 1e9;
}

// There was no time to save it, or it could not be saved: its newest set is what is left.
void Supervisor::end_for_the_time() {
  const double age_s = age_of_newest_set(settings_.common.directory, settings_.job);
  if (was_saved())
    tell(settings_, "the job is saved and has ended; start this command again to go on");
  else if (age_s < 0)
    tell(settings_, "the time is over (--until), and the job has no set");
  else
    tell(settings_, "the time is over (--until): " + seconds(static_cast<std::int64_t>(age_s * 1e3)) +
                        " since the newest set are lost");
  (void)job_.end_everyone("the time of the job is over", [] { return false; });
  note_event(settings_.common.directory, settings_.job, HistoryEvent("ended").add("exit_code", kSavedAndEnded));
}

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
  end_the_rest(lives);
  if (dead != nullptr && ending_signal_ == 0 && !was_saved()) {
    *end = failed(describe_life(*dead) + " died", dead, wait_status);
    return true;
  }
  return over && judge_end(lives, wait_status, end);
}

// Nobody lives any more.
bool Supervisor::judge_end(const Lives& lives, int wait_status, End* end) {
  const bool killed = WIFSIGNALED(wait_status);
  const int code = killed ? kBySignal + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
  const bool members_failed = job_.is_restart() && code == kRestartedProcessFailed;
  *end = End::kResult;
  result_ = code;
  if (was_saved()) {  // also if the signal has asked for it (run --kill-on)
    *end = End::kSaved;
  } else if (ending_signal_ != 0) {
    *end = End::kSignal;
    if (members_failed || adopted_) result_ = kBySignal + ending_signal_;
  } else if (job_.is_restart() && lives.epoch == epoch_before_) {
    *end = not_restarted(killed ? "the restart was killed" : "restart exited with " + std::to_string(code), code);
  } else if (killed) {
    *end = failed("the command was killed by signal " + std::to_string(WTERMSIG(wait_status)), nullptr, wait_status);
  } else if (adopted_ || members_failed) {
    result_ = lives.exit_status();
    if (result_ < 0 || (members_failed && result_ == 0))
      *end = failed("a process ended, and nobody knows how", nullptr, wait_status);
  } else if (job_.is_restart() && code != 0) {
    *end = failed("restart exited with " + std::to_string(code), nullptr, wait_status);
  }
  if (*end == End::kResult && settings_.retry_on.test(static_cast<unsigned>(result_) & 0xff))
    *end = failed("the job ended with exit code " + std::to_string(result_) + " (--retry-on)", nullptr, wait_status);
  return true;
}

Supervisor::End Supervisor::not_restarted(const std::string& how, int code) {
  constexpr int kOfTheSet[] = {static_cast<int>(Code::kNotFound), static_cast<int>(Code::kCorrupt),
                               static_cast<int>(Code::kVersion)};
  why_ = set_name(settings_.job, set_) + ": " + how;
  tell(settings_, why_);
  bounds_.not_restarted(set_, std::find(std::begin(kOfTheSet), std::end(kOfTheSet), code) != std::end(kOfTheSet));
  return End::kNotRestarted;
}

Supervisor::End Supervisor::failed(const std::string& how, const MemberLife* who, int wait_status) {
  why_ = how;
  unplanned_ = true;
  checkpoints_.stop();
  if (!came_back()) job_.await_last_word(how, &wait_status);
  const bool is_noted = job_.is_restart() && !job_.has_command() && WIFEXITED(wait_status) &&
                        WEXITSTATUS(wait_status) == kRestartedProcessFailed;
  if (!is_noted) note_failure(how, who);
  for (const std::uint32_t number : sets()) bounds_.committed(number);
  if (came_back())
    bounds_.failed(set_);
  else
    bounds_.not_restarted(set_, false);
  tell(settings_, how + "; the others are ended");
  job_.end_everyone(how, [this] {
    take_signals();
    return ending_signal_ != 0;
  });
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
  return !job_.is_restart() || count(events_of(settings_), "restart") > restarts_before_;
}

// An operator, a signal or a batch system has had it saved and ended, since the present start.
bool Supervisor::was_saved() const {
  const std::string& directory = settings_.common.directory;
  const std::string epoch = present_epoch(directory, settings_.job);
  std::string uri = exchange_of(settings_.common, settings_.job);
  if (epoch != epoch_before_ && settle_exchange(job_paths(directory, settings_.job).password, &uri).ok() &&
      !saved_before_end(uri, epoch).empty())
    return true;
  return ends_on_request(events_of(settings_)) > saves_before_;
}

void Supervisor::take_signals() {
  bool by_terminal = false;
  for (int signal; (signal = signals_.take(&by_terminal)) != 0;) {
    if (HeldSignals::ends(signal)) ending_signal_ = signal;
    (void)job_.signal(signal, by_terminal);
  }
}

// Members that outlive the process that was told have not heard of it. One that saves the job has its time.
void Supervisor::end_the_rest(const Lives& lives) {
  if (ending_signal_ == 0 || !lives.other.empty() || !lives.any_alive() || job_.has_head()) {
    alone_since_ns_ = 0;
  } else if (alone_since_ns_ == 0) {
    alone_since_ns_ = monotonic_ns();
  } else if (monotonic_ns() - alone_since_ns_ > kGraceNs) {
    (void)job_.end_everyone("the supervisor was asked to end the job", [] { return false; });
  }
}

bool Supervisor::pause(std::int64_t ms) {
  if (ms > 0) tell(settings_, "next try in " + seconds(ms));
  for (const std::int64_t until = monotonic_ns() + ms * 1'000'000;
       ending_signal_ == 0 && !time_is_short() && monotonic_ns() < until;) {
    signals_.wait(static_cast<int>(std::min<std::int64_t>((until - monotonic_ns()) / 1'000'000 + 1, kLookMs)));
    take_signals();
    job_.reap_orphans(0);
  }
  return ending_signal_ == 0;
}

int Supervisor::give_up(const std::string& why) {
  note_event(settings_.common.directory, settings_.job, HistoryEvent("gave_up").add("error", why));
  keep_metrics(settings_.metrics, settings_.common.directory, settings_.job);
  tell(settings_, "given up: " + why);
  return kGivenUp;
}

}  // namespace shadowib::cli
