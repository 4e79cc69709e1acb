// Copying sets to a far place.
#pragma once

#include <string>
#include <vector>

#include "shadowib/cli/far_options.h"

namespace shadowib::cli {

// Copies a set to the place and lists it there and here. kBusy: it is being removed.
Status flush_set(const std::string& directory, const std::string& set_path, const FarSettings& settings,
                 FlushReport* report);

// Flushes the sets that are due and not in the place yet, newest first, unless another flush of the job does so, or
// is about to. `wait`: after that one. The first failure of the place is the last try.
Status flush_due(const std::string& directory, const std::string& job, const FarSettings& settings, bool wait);
// Starts `shadowib flush` with these words as a process of its own, at the lowest priority and on any processor. Some
// kernels share processors between sessions (sched(7), autogroup). There a nice value counts within one session only.
// `beside_program`: this process is in the program's session, and so is the flush.
Status start_flush(const std::string& directory, std::vector<std::string> words, bool beside_program);

}  // namespace shadowib::cli
