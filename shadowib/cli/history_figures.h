// Sums over a job's history, for its report and for metrics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/cli/history.h"

namespace shadowib::cli {

// How a restart came to be needed, by the last event before it.
enum class RestartReason { kAfterFailure, kPlanned, kUnknown };

struct HistoryFigures {
  std::int64_t first_ms = 0, last_ms = 0;  // events
  unsigned committed = 0, failed = 0;      // checkpoints
  unsigned restarts[3] = {};               // by RestartReason
  unsigned failed_restarts = 0, failures = 0;
  double lost_s = 0;        // work done again, as far as it is known
  double stopped_s = 0;     // programs stood for checkpoints
  double taken_s = 0;       // checkpoints, from the request to the end
  double restarting_s = 0;  // from the command to running processes
  double stopped_median_ms = 0, stopped_worst_ms = 0;
  const PastEvent* last_checkpoint = nullptr;  // committed

  unsigned all_restarts() const { return restarts[0] + restarts[1] + restarts[2]; }
  // The part of the time from the first event to `now_ms` that was not spent on standing, restarting and doing again.
  double useful_ratio(std::int64_t now_ms) const;
};

// `events`, oldest first, have to outlive the figures.
HistoryFigures add_up(const std::vector<PastEvent>& events);

}  // namespace shadowib::cli
