// Which host starts which members of a set. Pure.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "shadowib/cli/launched_restart.h"
#include "shadowib/command_line/hosts.h"

namespace shadowib::cli {

struct HostShare {
  std::string host;
  std::set<std::uint32_t> members;
};

// Members by host, as even as slots are and in their order; no company (restart.h) on two hosts. Hosts for which none
// are left have no share. There may be more members than slots.
std::vector<HostShare> share_out(const Companies& companies, const std::vector<command_line::Host>& hosts);

// The next `count` slots behind the first *used ones, and from the first one on again at the end. *used grows by
// them.
std::vector<command_line::Host> next_slots(const std::vector<command_line::Host>& hosts, std::size_t count,
                                           std::size_t* used);

// "0,2,3".
std::string members_text(const std::set<std::uint32_t>& members);

// True if a share ends like that because of its host, or of the way to it. Its shell was killed then, ended with 255
// as ssh(1) does, or could not run the command.
bool is_lost_host(int wait_status);

}  // namespace shadowib::cli
