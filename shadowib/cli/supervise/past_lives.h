// Questions to the history of a supervised job. Pure.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shadowib/cli/history.h"

namespace shadowib::cli {

// The set after which the job was ended on request, if that is the last thing that is known; else kFromTheBeginning.
std::uint32_t planned_end(const std::vector<PastEvent>& events);
// The latest event of a set that was saved to end the job; nullptr: there is none.
const PastEvent* last_end_on_request(const std::vector<PastEvent>& events);
// How many such sets there are, but for those after which the job went on (kill_failed). Two commands that restart
// parts of a job at the same moment may both note that of one set: it counts once.
std::int64_t ends_on_request(const std::vector<PastEvent>& events);

std::int64_t count_events(const std::vector<PastEvent>& events, std::string_view name);

// The set that the job's present life began with; kFromTheBeginning if none.
std::uint32_t set_of_life(const std::vector<PastEvent>& events);

}  // namespace shadowib::cli
