#include "shadowib/cli/history_figures.h"

#include <algorithm>

namespace shadowib::cli {
namespace {

// What the job's last end was, until the next beginning.
RestartReason reason_after(const PastEvent& e, RestartReason before) {
  if (e.name == "failure") return RestartReason::kAfterFailure;
  if (e.name == "ended") return before == RestartReason::kAfterFailure ? before : RestartReason::kPlanned;
  if (e.name == "checkpoint") return e.number("kill") != 0 ? RestartReason::kPlanned : RestartReason::kUnknown;
  const bool runs = e.name == "started" || e.name == "restart" || e.name == "kill_failed";
  return runs ? RestartReason::kUnknown : before;
}

}  // namespace

HistoryFigures add_up(const std::vector<PastEvent>& events) {
  HistoryFigures f;
  if (events.empty()) return f;
  f.first_ms = events.front().time_ms;
  f.last_ms = events.back().time_ms;
  std::vector<double> stopped;
  RestartReason reason = RestartReason::kUnknown;
  for (const PastEvent& e : events) {
    if (e.name == "checkpoint") {
      ++f.committed;
      f.last_checkpoint = &e;
      stopped.push_back(e.number("stopped_ms"));
      f.stopped_s += stopped.back() / 1e3;
      f.taken_s += e.number("took_ms") / 1e3;
    }
    f.failed += e.name == "checkpoint_failed";
    f.failed_restarts += e.name == "restart_failed";
    f.failures += e.name == "failure";
    if (e.name == "failure") f.lost_s += e.number("lost_s");
    if (e.name == "restart") {
      ++f.restarts[static_cast<int>(reason)];
      f.restarting_s += e.number("ready_ms") / 1e3;
    }
    reason = reason_after(e, reason);
  }
  if (stopped.empty()) return f;
  const auto middle = stopped.begin() + static_cast<std::ptrdiff_t>(stopped.size() / 2);
  std::nth_element(stopped.begin(), middle, stopped.end());
  f.stopped_median_ms = *middle;
  f.stopped_worst_ms = *std::max_element(stopped.begin(), stopped.end());
  return f;
}

double HistoryFigures::useful_ratio(std::int64_t now_ms) const {
  const double all_s = static_cast<double>(now_ms - first_ms) / 1e3;
  return all_s <= 0 ? 1 : std::clamp(1 - (stopped_s + restarting_s + lost_s) / all_s, 0.0, 1.0);
}

}  // namespace shadowib::cli
