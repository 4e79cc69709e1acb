// The hosts of a supervised job (--hosts): which of them are used for a start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/cli/history.h"
#include "shadowib/cli/supervise/settings.h"

namespace shadowib::cli {

// Without hosts that were lost twice since `since_ms`, by the job's history. If none is left, all.
std::vector<command_line::Host> trusted_hosts(const std::vector<command_line::Host>& hosts,
                                              const std::vector<PastEvent>& events, std::int64_t since_ms);

// Hosts on which a command can be started by `shell`; each has 20 s to answer. Tells of those that do not. If none
// answers, all: the start then says why.
std::vector<command_line::Host> answering_hosts(const SuperviseSettings& settings,
                                                const std::vector<command_line::Host>& hosts);

}  // namespace shadowib::cli
