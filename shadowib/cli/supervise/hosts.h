// The hosts of a supervised job (--hosts): which of them are used for a start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/cli/history.h"
#include "shadowib/cli/supervise/settings.h"

namespace shadowib::cli {

// "a:2,b", or "slurm": the nodes of the present Slurm job, with a slot for each task. kUsage: it is neither, or there
// is no such job.
Status parse_host_list(const std::string& text, std::vector<command_line::Host>* hosts);

// "2(x3),1" as 2, 2, 2, 1, as Slurm tells of the tasks of its nodes. Empty: it is no such list.
std::vector<int> slurm_counts(const std::string& text);

// Without hosts that were lost twice since `since_ms`, by the job's history. If none is left, all.
std::vector<command_line::Host> trusted_hosts(const std::vector<command_line::Host>& hosts,
                                              const std::vector<PastEvent>& events, std::int64_t since_ms);

// Hosts on which a command can be started by `shell`; each has 20 s to answer. Tells of those that do not. If none
// answers, all: the start then says why.
std::vector<command_line::Host> answering_hosts(const SuperviseSettings& settings,
                                                const std::vector<command_line::Host>& hosts);

}  // namespace shadowib::cli
