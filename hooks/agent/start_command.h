// Starting the command from inside of a member.
#pragma once

#include <string>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib {

// Starts `shadowib WORDS...` as nobody's child, in a session of its own; its output goes to `output_fd` (< 0:
// nowhere).
Status start_command(std::vector<std::string> words, int output_fd);
// Starts `shadowib checkpoint` for this job, or for one cluster of it, in the program's session: the flush that it
// starts needs that one (shadowib/cli/far_flush.h).
Status start_checkpoint_command(bool kill, int timeout_ms, int output_fd, const char* cluster = "");

}  // namespace shadowib
