#include "hooks/store/parity_layout.h"

#include <algorithm>
#include <cerrno>
#include <map>

namespace shadowib {

int ParityShape::row(int host, int stripe) const {
  const int place = (host - stripe + hosts) % hosts;
  return place < losses ? segments() + place : place - losses;
}

std::uint64_t segment_bytes(const ParityShape& shape, std::uint64_t largest_blob) {
  const auto segments = static_cast<std::uint64_t>(shape.segments());
  return (largest_blob + segments - 1) / segments;
}

Status plan_groups(const Domains& domains, int losses, std::vector<std::vector<std::string>>* groups) {
  std::map<std::string, std::vector<std::string>> by_domain;
  for (const auto& [host, domain] : domains) by_domain[domain].push_back(host);
  std::size_t largest = 0;
  for (const auto& [domain, hosts] : by_domain) largest = std::max(largest, hosts.size());
  // As many groups as the largest domain has hosts, at least: each takes one of them at most.
  const std::size_t count =
      std::max(largest, (domains.size() + kMostGroupHosts - 1) / static_cast<std::size_t>(kMostGroupHosts));
  groups->assign(count, {});
  std::size_t next = 0;
  for (const auto& [domain, hosts] : by_domain)
    for (const std::string& host : hosts) (*groups)[next++ % count].push_back(host);
  for (const auto& group : *groups)
    if (group.size() <= static_cast<std::size_t>(losses))
      return Status::of(Code::kUsage, EINVAL,
                        "a store that survives the loss of %d host%s needs members on hosts of %d failure domains at "
                        "least, in groups of as many; here are %zu hosts in %zu domains",
                        losses, losses == 1 ? "" : "s", losses + 1, domains.size(), by_domain.size());
  return {};
}

}  // namespace shadowib
