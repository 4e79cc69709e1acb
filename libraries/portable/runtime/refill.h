// Filling the variables of frames that are entered.
#pragma once

#include "libraries/portable/runtime/frames.h"

namespace shadowib::portable {

// Call before the frame's code writes the new addresses of its variables over the old ones.
void keep_addresses(const Frame& frame);

// Call then: writes the variables that have addresses, and makes pointers among the other values those of this
// process.
void fill_frame(Frame& frame);

}  // namespace shadowib::portable
