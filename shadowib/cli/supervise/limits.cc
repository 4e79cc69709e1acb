// When the job is to be saved and ended: --until, and what --notice announces.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "shadowib/base/lock.h"
#include "shadowib/cli/sets.h"
#include "shadowib/cli/supervise/supervisor.h"
#include "shadowib/cli/supervise/time_limit.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace {

double now_s() { return static_cast<double>(monotonic_ns()) / 1e9; }

double left_until_s(const SuperviseSettings& settings) {
  if (settings.until_s == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(settings.until_s) - static_cast<double>(wall_clock_ns()) / 1e9;
}

// "125.0 s", "0.4 minutes".
std::string one_digit(double number, const char* unit) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.1f %s", number, unit);
  return text;
}

}  // namespace

double Supervisor::left_s() const { return std::min(left_until_s(settings_), announced_.left_s(now_s())); }

bool Supervisor::last_save_is_due() const {
  return left_until_s(settings_) <= last_save_s_ || announced_.save_is_due(now_s(), save_time_s_);
}

const char* Supervisor::limit() const {
  return announced_.is_known() && announced_.left_s(now_s()) <= left_until_s(settings_) ? "--notice" : "--until";
}

void Supervisor::ask_for_notice() {
  Said said = Said::kNothing;
  double left_s = 0;
  if (!notice_command_.step(&said, &left_s)) return;
  if (said == Said::kSeconds) return announced("the command", left_s);
  if (!announced_.is_known()) return;
  announced_.withdrawn();
  hurried_ = false;
  tell(settings_, "the notice is withdrawn");
}

void Supervisor::announced(const std::string& from, double left_s) {
  if (!announced_.announced(now_s(), left_s, save_time_s_)) return;
  HistoryEvent event("notice");
  event.add("from", from).add("fits", announced_.fits());
  if (!std::isinf(left_s)) event.add("left_s", left_s);
  if (save_time_s_ >= 0) event.add("save_s", save_time_s_);
  std::string text = std::isinf(left_s) ? "the place goes away" : "the place goes away in " + one_digit(left_s, "s");
  if (announced_.fits()) {
    text += "; the job is saved before";
  } else {
    const double age_s = age_of_newest_set(settings_.common.directory, settings_.job);
    text += ", and a save is to have " + one_digit(save_time_s_, "s") + ": none is begun";
    if (age_s >= 0) {
      event.add("lost_s", age_s + left_s);
      text += "; " + one_digit((age_s + left_s) / 60, "minutes") + " since the newest set will be lost";
    } else {
      text += ", and the job has no set";
    }
  }
  note_event(settings_.common.directory, settings_.job, event);
  tell(settings_, "notice: " + text);
  on_event_.run("notice", text, name_of_set());
}

}  // namespace shadowib::cli
