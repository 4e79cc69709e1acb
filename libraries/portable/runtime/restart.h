// A process that begins with the state of an image, perhaps of another architecture.
//
// Order: begin_restart makes blocks, globals and the left stack; main enters its frames, and each gets its variables
// by restart_frame; at the site end_restart writes the pointers that were left. Threads: the program's first only.
#pragma once

#include <cstdint>
#include <string>

#include "libraries/portable/runtime/frames.h"

namespace shadowib::portable {

constexpr int kExitImage = 5;  // as all commands: an image is damaged, or is not this program's

// Reads the image and makes the left stack. `exact`: a float that would be rounded is refused. Throws Refused; the
// process cannot go on then. Returns how many sites were visited before.
std::uint64_t begin_restart(const std::string& path, bool exact);
// True between begin_restart and end_restart.
bool restarting();
// Gives the frame at hand its variables, whose addresses are in its buffer now. It and end_restart end the process
// with kExitImage if that cannot be.
void restart_frame(Frame& frame);
void end_restart();

}  // namespace shadowib::portable
