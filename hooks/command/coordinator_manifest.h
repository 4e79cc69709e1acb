// The members' reports of their saved images, as the manifest of the set and the report to the caller. Internal to
// hooks/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hooks/command/coordinator.h"
#include "hooks/imager/checkpoint_set.h"

namespace shadowib {

// Keyed by member index: the values of the keys saved/<index> and files/<index> (protocol.h).
struct MemberResults {
  std::map<std::uint32_t, std::string> saved, files;
};

// Adds the members, their mapped files, generation and backend to the manifest, and the members to the report.
// `results` has every one of `members`. kVersion names one that speaks another protocol.
Status describe_results(const std::vector<MemberStatus>& members, const MemberResults& results, SetManifest* manifest,
                        CheckpointReport* report);

// Notes in the manifest on which host each member has kept its image.
void describe_placement(const StoreSpec& store, const std::string& place,
                        const std::map<std::uint32_t, std::string>& host_of, SetManifest* manifest);

}  // namespace shadowib
