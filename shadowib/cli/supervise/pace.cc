#include "shadowib/cli/supervise/pace.h"

#include <algorithm>
#include <cmath>

namespace shadowib::cli {
namespace {

constexpr double kUnknownCostS = 1;  // until there is a checkpoint
constexpr double kLatestFirstS = 60, kLeastS = 1;

// Average, in which the latest counts half.
double cost_of_checkpoints(const std::vector<PastEvent>& events) {
  double cost_s = 0;
  for (const PastEvent& e : events) {
    if (e.name != "checkpoint" || e.number("kill") != 0) continue;
    const double stopped_s = e.number("stopped_ms") / 1e3;
    cost_s = cost_s > 0 ? (cost_s + stopped_s) / 2 : stopped_s;
  }
  return cost_s;
}

}  // namespace

double daly_interval_s(double cost_s, double mtbf_s) {
  if (cost_s >= 2 * mtbf_s) return mtbf_s;
  const double x = cost_s / (2 * mtbf_s);
  return std::sqrt(2 * cost_s * mtbf_s) * (1 + std::sqrt(x) / 3 + x / 9) - cost_s;
}

RunTime run_time(const std::vector<PastEvent>& events, std::int64_t now_ms) {
  RunTime seen;
  std::int64_t since_ms = -1;
  const auto stop = [&](std::int64_t at_ms) {
    if (since_ms >= 0) seen.run_s += static_cast<double>(std::max<std::int64_t>(at_ms - since_ms, 0)) / 1e3;
    since_ms = -1;
  };
  for (const PastEvent& e : events) {
    if (e.name == "started" || e.name == "restart" || e.name == "kill_failed") {
      stop(e.time_ms);
      since_ms = e.time_ms;
    } else if (e.name == "failure" && since_ms >= 0) {
      ++seen.failures;
      stop(e.time_ms);
    } else if (e.name == "ended" || (e.name == "checkpoint" && e.number("kill") != 0)) {
      stop(e.time_ms);
    }
  }
  stop(now_ms);
  return seen;
}

double mean_time_s(const RunTime& seen, double assumed_s) { return (assumed_s + seen.run_s) / (1 + seen.failures); }

double interval_s(const Pace& pace, const std::vector<PastEvent>& events, std::int64_t now_ms) {
  if (pace.interval_s > 0) return pace.interval_s;
  const double known_s = cost_of_checkpoints(events), cost_s = known_s > 0 ? known_s : kUnknownCostS;
  const double best_s = daly_interval_s(cost_s, mean_time_s(run_time(events, now_ms), pace.mtbf_s));
  return std::max({best_s, cost_s / pace.overhead, kLeastS});
}

double first_interval_s(const Pace& pace, const std::vector<PastEvent>& events, std::int64_t now_ms) {
  const double interval = interval_s(pace, events, now_ms);
  return pace.interval_s > 0 ? interval : std::min(interval, kLatestFirstS);
}

double retry_s(unsigned failures, double interval_s, bool is_last, bool busy) {
  constexpr double kAtOnceS = 0.25;
  constexpr unsigned kLastDoubling = 6;
  if (is_last && busy) return std::min(kAtOnceS, interval_s);
  return std::min(interval_s, static_cast<double>(1u << std::min(failures, kLastDoubling)));
}

std::int64_t first_due_ns(std::int64_t began_ns, std::int64_t last_joined_ns, double first_interval_s) {
  constexpr int kMostIntervals = 10;
  const auto interval_ns = static_cast<std::int64_t>(first_interval_s * 1e9);
  return std::min(std::max(began_ns, last_joined_ns) + interval_ns, began_ns + kMostIntervals * interval_ns);
}

}  // namespace shadowib::cli
