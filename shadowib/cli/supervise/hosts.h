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

// Those of settings.hosts to start members on now: trusted ones that answer. None if there are none.
std::vector<command_line::Host> hosts_for_a_start(const SuperviseSettings& settings);

// --hosts, --rsh and --lease as they were given, for settings. kUsage: no list of hosts, or a lease without one.
struct GivenHosts {
  std::string hosts, rsh;
};
void add_host_options(Command* command, const char* what_for, GivenHosts* given, SuperviseSettings* settings);
Status take_hosts(const GivenHosts& given, SuperviseSettings* settings);

// Hosts on which a command can be started by `shell`; each has 20 s to answer. Tells of those that do not. If none
// answers, all: the start then says why.
std::vector<command_line::Host> answering_hosts(const SuperviseSettings& settings,
                                                const std::vector<command_line::Host>& hosts);

}  // namespace shadowib::cli
