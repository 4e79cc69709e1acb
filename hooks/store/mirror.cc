#include "hooks/store/mirror.h"

#include <cerrno>

namespace shadowib {

Status plan_mirror(const Domains& domains, std::map<std::string, std::string>* partners) {
  partners->clear();
  std::map<std::string, int> loads;
  for (auto host = domains.begin(); host != domains.end(); ++host) {
    std::string best;
    // From the next host on, once round.
    auto other = host;
    for (std::size_t step = 1; step < domains.size() && (best.empty() || loads[best] > 0); ++step) {
      if (++other == domains.end()) other = domains.begin();
      if (other->second != host->second && (best.empty() || loads[other->first] < loads[best])) best = other->first;
    }
    if (best.empty())
      return Status::of(Code::kUsage, EINVAL,
                        "a mirror needs members on hosts of two failure domains, and all are in %.100s; use a store "
                        "without copies, or central",
                        host->second.c_str());
    (*partners)[host->first] = best;
    ++loads[best];
  }
  return {};
}

std::string find_partner(const Domains& domains, const std::set<std::string>& holders,
                         const std::map<std::string, int>& loads) {
  std::set<std::string> taken;
  for (const std::string& holder : holders)
    if (const auto at = domains.find(holder); at != domains.end()) taken.insert(at->second);
  const auto load = [&loads](const std::string& host) {
    const auto at = loads.find(host);
    return at == loads.end() ? 0 : at->second;
  };
  std::string best;
  for (const auto& [host, domain] : domains)
    if (!holders.contains(host) && !taken.contains(domain) && (best.empty() || load(host) < load(best))) best = host;
  return best;
}

}  // namespace shadowib
