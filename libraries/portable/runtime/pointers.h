// Looks at all pointers of a state before it is saved.
#pragma once

#include "libraries/portable/runtime/state.h"

namespace shadowib::portable {

// Throws Refused, naming the variable, if a pointer leads to memory that is mapped and not the program's, or if bytes
// have no known meaning. Adds to the image the names of functions and variables of libraries that pointers lead to.
void check_pointers(State& state);

}  // namespace shadowib::portable
