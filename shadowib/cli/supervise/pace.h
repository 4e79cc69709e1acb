// How often a supervised job is saved. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "shadowib/cli/history.h"

namespace shadowib::cli {

// Seconds from one checkpoint to the next. `cost_s`: how long the program stands for one. `mtbf_s`: mean time between
// failures of the job as a whole. Source: Daly 2006: with x = cost / (2 mtbf),
// sqrt(2 cost mtbf) (1 + sqrt(x) / 3 + x / 9) - cost where cost < 2 mtbf, else mtbf.
double daly_interval_s(double cost_s, double mtbf_s);

// The sums of a history that tell about failures.
struct RunTime {
  double run_s = 0;       // time in which the job ran
  unsigned failures = 0;  // ends that nobody had announced
};
RunTime run_time(const std::vector<PastEvent>& events, std::int64_t now_ms);

// The mean time between failures: as if one failure in `assumed_s` had been seen before.
double mean_time_s(const RunTime& seen, double assumed_s);

struct Pace {
  double interval_s = 0;   // fixed; 0: by cost and failures
  double mtbf_s = 86400;   // assumed before any failure
  double overhead = 0.05;  // the part of the time that checkpoints may cost at most
};
// From the end of a checkpoint to the begin of the next.
double interval_s(const Pace& pace, const std::vector<PastEvent>& events, std::int64_t now_ms);
// From a start to its first checkpoint: the fixed interval, else within a minute.
double first_interval_s(const Pace& pace, const std::vector<PastEvent>& events, std::int64_t now_ms);
// When the first checkpoint of a start is due: an interval after the last process has joined. A set without some of
// the processes could not be restarted as a whole. A job that others join again and again waits for ten intervals at
// most.
std::int64_t first_due_ns(std::int64_t began_ns, std::int64_t last_joined_ns, double first_interval_s);

// From the end of a checkpoint that was not taken to the next try, which comes no later than `interval_s`: 2 s, 4 s
// and so on to 64 s after `failures` in a row. The last checkpoint of a job has little time: it is tried again at
// once if something that passes was in the way (`busy`).
double retry_s(unsigned failures, double interval_s, bool is_last, bool busy);

}  // namespace shadowib::cli
