// The agent of a restored process: its descriptors, its job, and how it goes on.
#pragma once

#include "hooks/job/job_info.h"

namespace shadowib {

// Remembers, in memory that the image holds, which descriptor numbers are ours. Before saving.
void note_owned_descriptors();
// The restored agent thread goes on here. Does not return on failure: the process exits.
void go_on_after_restart(const JobInfo& info);

}  // namespace shadowib
