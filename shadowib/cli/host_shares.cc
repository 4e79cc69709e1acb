#include "shadowib/cli/host_shares.h"

#include <sys/wait.h>

namespace shadowib::cli {

std::vector<HostShare> share_out(const Companies& companies, const std::vector<command_line::Host>& hosts) {
  std::vector<int> ranks;
  for (std::size_t host = 0; host < hosts.size(); ++host)
    ranks.insert(ranks.end(), static_cast<std::size_t>(hosts[host].slots), static_cast<int>(host));
  std::size_t members = 0;
  for (const auto& company : companies) members += company.size();
  if (ranks.size() > members && members > 0) ranks.resize(members);  // hosts are filled in their order
  const std::vector<std::set<std::uint32_t>> dealt = deal(companies, ranks);
  std::vector<HostShare> shares;
  for (std::size_t host = 0; host < dealt.size(); ++host)
    if (!dealt[host].empty()) shares.push_back({hosts[host].name, dealt[host]});
  return shares;
}

std::vector<command_line::Host> next_slots(const std::vector<command_line::Host>& hosts, std::size_t count,
                                           std::size_t* used) {
  std::vector<std::size_t> slots;
  for (std::size_t host = 0; host < hosts.size(); ++host)
    slots.insert(slots.end(), static_cast<std::size_t>(hosts[host].slots), host);
  if (slots.empty()) return {};
  std::vector<int> taken(hosts.size());
  for (std::size_t i = 0; i < count; ++i) ++taken[slots[(*used + i) % slots.size()]];
  *used += count;
  std::vector<command_line::Host> chosen;
  for (std::size_t host = 0; host < hosts.size(); ++host)
    if (taken[host] > 0) chosen.push_back({hosts[host].name, taken[host], hosts[host].architecture});
  return chosen;
}

std::string members_text(const std::set<std::uint32_t>& members) {
  std::string text;
  for (const std::uint32_t member : members) text += (text.empty() ? "" : ",") + std::to_string(member);
  return text;
}

bool is_lost_host(int wait_status) {
  if (WIFSIGNALED(wait_status)) return true;
  constexpr int kNotExecuted = 126, kNotFound = 127, kOfShell = 255;
  const int code = WEXITSTATUS(wait_status);
  return code == kNotExecuted || code == kNotFound || code == kOfShell;
}

}  // namespace shadowib::cli
