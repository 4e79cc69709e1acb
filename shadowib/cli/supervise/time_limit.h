// When a supervised job is to be saved and ended, as before a batch system's time limit. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/base/status.h"
#include "shadowib/cli/history.h"

namespace shadowib::cli {

// The moment that `text` names, in seconds since 1970. It may be:
//   90, 90s, 15m, 1.5h, 2d      from now on
//   18:30, 18:30:15             when a clock here shows that next
//   2026-11-27T18:30            local time; seconds may follow
//   @1795800000                 seconds since 1970
//   slurm                       `slurm_end`, the value of SLURM_JOB_END_TIME
// kUsage: it is none of these, or has passed.
Status parse_until(const std::string& text, std::int64_t now_s, const std::string& slurm_end, std::int64_t* end_s);

// "90", "90s", "15m", "1.5h", "2d". False: it is none of these. It may be negative.
bool parse_duration(const std::string& text, double* seconds);

// The time that a save is to have: 1.5 times the sum of two. The first is what 95 % of the job's checkpoints took
// besides writing. The second is the time for the largest of the latest sets, at the rate that 95 % reached.
// With it comes the time of 95 % of the copies to a far place, for which members wait then. At least 2 s.
// -1: no checkpoint is known.
double save_time_s(const std::vector<PastEvent>& events);

// How long before the end the last checkpoint begins: its save_time_s(). If that is not known, a minute or the
// time-out, if that is less. At most half of `given_s`, the time from start to end.
double last_save_s(const std::vector<PastEvent>& events, double timeout_s, double given_s);

}  // namespace shadowib::cli
