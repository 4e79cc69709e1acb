// --wait near|far of `checkpoint`: whether the command returns at the commit, or when the set is in the far place.
#pragma once

#include <string>

#include "shadowib/cli/far_options.h"

namespace shadowib::cli {

inline constexpr char kWaitNear[] = "near", kWaitFar[] = "far";

void add_wait_option(Command* command, std::string* wait);

// Before a checkpoint with --wait far. kUsage: the job has no far place, or its next set is not one that is flushed.
// The text says what to do.
Status judge_wait_far(const std::string& directory, const std::string& job, const FarSettings& settings);

// Copies a committed set to the far place as `flush --wait` does, unless another flush has just done so. The text of
// a failure says that the set stays.
Status flush_and_wait(const std::string& directory, const std::string& set_path, const FarSettings& settings);

}  // namespace shadowib::cli
