// Which host has the copies of which: the ring of a mirror. Pure.
#pragma once

#include <map>
#include <set>
#include <string>

#include "shadowib/base/status.h"

namespace shadowib {

// Failure domains by host: hosts of one domain may be lost together.
using Domains = std::map<std::string, std::string>;

// The host that keeps the copies of each host: the next one of another domain, in the order of their names, so that
// each keeps as few as can be. kUsage: there are not two domains.
Status plan_mirror(const Domains& domains, std::map<std::string, std::string>* partners);

// A host that may take a copy of a piece that `holders` have: of none of their domains, with the fewest `loads`. ""
// if there is none.
std::string find_partner(const Domains& domains, const std::set<std::string>& holders,
                         const std::map<std::string, int>& loads);

}  // namespace shadowib
