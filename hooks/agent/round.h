// A member's part in one checkpoint.
#pragma once

#include <string>

namespace shadowib {

// `request`: the value of `<epoch>/control/checkpoint`. On the agent's thread; returns when the program goes on.
void take_part_in_checkpoint(const std::string& request);

}  // namespace shadowib
