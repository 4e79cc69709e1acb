// Whether a set could be restarted on this machine.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/machine.h"

namespace shadowib::cli {

// `given` is a path or a name, as `restart` takes it. Pages are not verified (that is `verify`), nothing is started.
Findings examine_set(const Common& common, const std::string& given);

// Likewise for a restart, before it changes anything: the first of those refusals, with the code that the manual
// gives it. Looks at the `members` to be started here (none: all). `wanted` is the backend to go on over, as the
// option has it; `verbs_library` the file that names the verbs library, "" if that is left to what the job was
// started with.
Status check_set_here(const SetManifest& manifest, const std::set<std::uint32_t>& members, const std::string& wanted,
                      const std::string& verbs_library);

// Likewise of the whole set of a cluster that is to come back in its job's epoch. `lives`: members of the cluster do,
// and end before: what they hold is not judged.
Status check_set_in_recovery(const SetManifest& manifest, const std::string& wanted, const std::string& verbs_library,
                             bool lives);

}  // namespace shadowib::cli
