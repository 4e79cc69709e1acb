// One process of a storm, from meeting the others to the report.
#pragma once

#include "storm/options.h"

namespace storm {

// Returns the exit code: 0 if nothing was wrong. Writes AREA/report-RANK.json.
int run_process(const Options& options);

}  // namespace storm
