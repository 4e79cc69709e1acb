// Results of a simulation as JSON, and means over several runs.
#pragma once

#include <vector>

#include "perftest/fedsim/simulation.h"

namespace shadowib::fedsim {

Json encode_result(const SimulationResult& result);

// Each number of `results` as {"mean": M, "error": E}: E is the standard error of the mean, 0 for a single run. Lists
// keep their form; collections of different runs are compared one by one, as far as all have them.
Json summarize(const std::vector<Json>& results);

}  // namespace shadowib::fedsim
