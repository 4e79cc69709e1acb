// Hosts as people name them for a restart (--hosts).
#pragma once

#include <string>
#include <vector>

#include "shadowib/base/status.h"
#include "shadowib/command_line/hosts.h"

namespace shadowib::cli {

// "a:2,b", or "slurm": the nodes of the present Slurm job, with a slot for each task. kUsage: it is neither, or there
// is no such job.
Status parse_host_list(const std::string& text, std::vector<command_line::Host>* hosts);

// "2(x3),1" as 2, 2, 2, 1, as Slurm tells of the tasks of its nodes. Empty: it is no such list.
std::vector<int> slurm_counts(const std::string& text);

}  // namespace shadowib::cli
