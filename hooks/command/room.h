// Room for images, as members tell of it, for the choice of a store. Internal to hooks/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hooks/command/coordinator.h"
#include "hooks/command/copies.h"
#include "hooks/job/protocol.h"

namespace shadowib {

// `rooms` has the words of every one of `members`: near/<index> (protocol.h). Images may take 95% of free space.
StoreQuestion describe_room(const StoreChoice& choice, const std::string& directory,
                            const std::vector<MemberStatus>& members, const std::map<std::uint32_t, Fields>& rooms,
                            const NearHosts& hosts);

}  // namespace shadowib
