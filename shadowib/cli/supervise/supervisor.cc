#include "shadowib/cli/supervise/supervisor.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "hooks/imager/set/manifest.h"
#include "hooks/job/job_directory.h"
#include "hooks/store/store.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/end_on_request.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/metrics.h"
#include "shadowib/cli/sets.h"
#include "shadowib/cli/supervise/hosts.h"
#include "shadowib/cli/supervise/past_lives.h"
#include "shadowib/cli/supervise/time_limit.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace {

constexpr int kLookMs = 100;

std::string seconds(std::int64_t ms) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", static_cast<double>(ms) / 1e3);
  return text;
}

}  // namespace

int Supervisor::run() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // what CMD leaves behind is to be found
  for (;;) {
    if (!start()) return give_up(why_);
    if (ending_signal_ != 0) return kBySignal + ending_signal_;
    if (time_over_) {
      tell(settings_, std::string("the time is over (") + limit() + "); start this command again to go on");
      return kSavedAndEnded;
    }
    const End end = is_started_ ? watch() : End::kNotRestarted;
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
        saved_ = true;
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

Status Supervisor::sets(std::vector<std::uint32_t>* numbers) const {
  std::vector<StoredSet> stored;
  numbers->clear();
  SHADOWIB_TRY(open_directory_store(settings_.common.directory)->list(&stored));
  for (const StoredSet& set : stored)
    if (set.committed && set.job == settings_.job) numbers->push_back(set.number);
  return {};
}

// How many sets a checkpoint leaves; 0: all.
unsigned Supervisor::to_keep() const {
  std::vector<std::uint32_t> numbers;
  return sets(&numbers).ok() ? bounds_.to_keep(settings_.keep, numbers) : 0;
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
  std::vector<PastEvent> events;
  if (!knows_past_) settle_end_on_request(settings_.common, settings_.job);
  if (Status s = read_events(settings_, &events); !s.ok()) return not_started(s);
  if (!std::exchange(knows_past_, true)) {
    bounds_.remember(events);
    planned_set_ = planned_end(events);
  }
  saves_before_ = ends_on_request(events);
  restarts_before_ = count_events(events, "restart");
  is_started_ = true;
  adopted_ = adopt();
  if (adopted_) {
    if (Status s = read_events(settings_, &events); !s.ok()) return not_started(s);
    set_ = set_of_life(events);
  }
  note_committed();
  time_over_ = !adopted_ && time_is_short();
  if (adopted_ || ending_signal_ != 0 || time_over_) return true;
  std::vector<std::uint32_t> numbers;
  if (Status s = sets(&numbers); !s.ok()) return not_started(s);
  const std::vector<std::uint32_t> order = bounds_.order(numbers);
  set_ = order.empty() ? kFromTheBeginning : order.front();
  if (!order.empty() && bounds_.all_refused(order)) {
    why_ = "none of the job's " + std::to_string(order.size()) + " sets can be restarted; the last reason: " + why_;
    return false;
  }
  const bool again = std::exchange(started_once_, true);
  if (set_ != kFromTheBeginning)
    tell(settings_, "restarting " + set_name(settings_.job, set_) + (rolls_back() ? ", files rolled back" : ""));
  else if (again)
    tell(settings_, "starting from the beginning: there is no set yet");
  const std::vector<command_line::Host> hosts = hosts_now();
  const Status status = set_ != kFromTheBeginning ? job_.restart(set_, rolls_back(), hosts) : job_.start_command();
  if (!status.ok()) return not_started(status);
  if (again || set_ != kFromTheBeginning) on_event_.run("restart", why_, name_of_set());
  return true;
}

bool Supervisor::is_portable_set() const {
  SetManifest manifest;
  const std::string path = sets_path(settings_.common.directory) + "/" + name_of_set();
  return set_ != kFromTheBeginning && read_manifest(path, &manifest).ok() && is_portable(manifest);
}

// Something is missing here that may come back, as this command's own file during an upgrade.
bool Supervisor::not_started(const Status& status) {
  is_started_ = false;
  why_ = status.text();
  tell(settings_, why_);
  bounds_.not_restarted(set_, false);
  return true;
}

// CMD finds them in its environment.
std::vector<command_line::Host> Supervisor::hosts_now() const {
  const std::vector<command_line::Host> hosts = hosts_for_a_start(settings_);
  if (hosts.empty()) return hosts;
  ::setenv("SHADOWIB_HOSTS", command_line::hosts_text(hosts).c_str(), 1);
  return hosts;
}

Supervisor::End Supervisor::watch() {
  checkpoints_.begin();
  for (int wait_status = 0;;) {
    int status = 0;
    if (job_.command_ended(&status)) wait_status = status;
    End end;
    if (judge(wait_status, &end)) return end;
    if (left_s() <= 0) return End::kTimeOver;
    take_checkpoints();
    take_signals();
    signals_.wait(kLookMs);
    job_.reap_orphans(checkpoints_.command());
  }
}

void Supervisor::note_committed() {
  std::vector<std::uint32_t> numbers;
  if (sets(&numbers).ok()) bounds_.present(numbers);
  const std::vector<PastEvent> events = events_of(settings_);
  save_time_s_ = save_time_s(events);
  if (settings_.until_s != 0)
    last_save_s_ =
        last_save_s(events, settings_.timeout_s, static_cast<double>(settings_.until_s - settings_.begun_s));
}

// One that is under way when the time gets short comes to its end first: the last one may write less then. Its end
// plans the next one for later, so the last one is hurried after it. Members that
// nobody has told of a signal are about to end, and checkpoints would put that off.
void Supervisor::take_checkpoints() {
  const bool last = last_save_is_due();
  if (last && checkpoints_.command() <= 0 && !std::exchange(hurried_, true)) checkpoints_.hurry();
  const bool due = alone_since_ns_ == 0 && checkpoints_.due() && (last || !announced_.is_too_soon());
  if (due && last)
    checkpoints_.start_last(to_keep(), std::max(std::isinf(left_s()) ? settings_.timeout_s : left_s(), 1.0));
  else if (due)
    checkpoints_.start(to_keep());
  if (checkpoints_.step()) note_committed();
}

// There was no time to save it, or it could not be saved: its newest set is what is left.
void Supervisor::end_for_the_time() {
  const std::string over = std::string("the time is over (") + limit() + ")";
  const double age_s = age_of_newest_set(settings_.common.directory, settings_.job);
  saved_ = was_saved(events_of(settings_));
  if (saved_) {
    tell(settings_, "the job is saved and has ended; start this command again to go on");
  } else {
    const std::string told =
        age_s < 0 ? over + ", and the job has no set"
                  : over + ": " + seconds(static_cast<std::int64_t>(age_s * 1e3)) + " since the newest set are lost";
    tell(settings_, told);
    on_event_.run("time_over", told, name_of_set());
  }
  if (!end_everyone("the time of the job is over")) return;
  note_event(settings_.common.directory, settings_.job, HistoryEvent("ended").add("exit_code", kSavedAndEnded));
}

// And announcements, which come as one.
void Supervisor::take_signals() {
  ask_for_notice();
  bool by_terminal = false;
  for (int signal; (signal = signals_.take(&by_terminal)) != 0;) {
    if (signal == settings_.notice.signal) {
      const double left_s = settings_.notice.signal_s;
      if (!announced_.is_known())
        announced("a signal", left_s < 0 ? std::numeric_limits<double>::infinity() : left_s);
      continue;
    }
    if (HeldSignals::ends(signal)) ending_signal_ = signal;
    (void)job_.signal(signal, by_terminal);
  }
}

bool Supervisor::end_everyone(const std::string& why, ByTheTime by_the_time) {
  const int before = std::exchange(ending_signal_, 0);
  const bool ended = job_.end_everyone(why, [this, by_the_time] {
    take_signals();
    return ending_signal_ != 0 || (by_the_time == ByTheTime::kToo && left_s() <= 0);
  });
  if (!ended && ending_signal_ != 0) tell(settings_, "a signal ends the waiting: processes of the job may live on");
  if (ending_signal_ == 0) ending_signal_ = before;
  return ended;
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

void Supervisor::finish() {
  std::vector<std::uint32_t> all;
  if (saved_ && sets(&all).ok() && !all.empty())
    on_event_.run("saved", "", set_name(settings_.job, *std::max_element(all.begin(), all.end())));
  on_event_.finish();
}

int Supervisor::give_up(const std::string& why) {
  note_event(settings_.common.directory, settings_.job, HistoryEvent("gave_up").add("error", why));
  keep_metrics(settings_.metrics, settings_.common.directory, settings_.job);
  tell(settings_, "given up: " + why);
  on_event_.run("given_up", why, name_of_set());
  return kGivenUp;
}

}  // namespace shadowib::cli
