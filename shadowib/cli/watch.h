// shadowib status --watch: a job at work, looked at again and again.
#pragma once

#include <string>

#include "shadowib/cli/common.h"

namespace shadowib::cli {

// Shows the job every `every_s` until it has ended or SIGINT or SIGTERM comes, on a terminal as a screen that is
// drawn anew, elsewhere as blocks of lines, or as a JSON object on a line for each look. `timeout_s`: as of status.
// Returns the exit code.
int watch_job(const Common& common, const std::string& job, double every_s, double timeout_s);

}  // namespace shadowib::cli
