// Images on this host that belong to no set any more: left by commands that died, or of sets removed on another host.
#pragma once

#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib::cli {

// Removes those of `directory`'s jobs, or of `job` alone. *removed gets their directories; `dry_run`: tells them
// only. A set that cannot be read may own any image of its job, so these stay.
Status collect_near_images(const std::string& directory, const std::string& job, bool dry_run,
                           std::vector<std::string>* removed);

}  // namespace shadowib::cli
