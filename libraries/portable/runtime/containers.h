// Containers of the standard library: bytes that hold nothing are made so that they can be saved.
#pragma once

#include "libraries/portable/runtime/state.h"

namespace shadowib::portable {

// In the program's memory, where the library reads none of these bytes: zeros behind a string's end, the byte that
// tells where its characters lie, zeros for the value that an optional has not, and for the room behind a vector's
// end. Else what was there before would be taken for values. While a member function of a vector, an optional or a
// string has a frame, bytes of these hold elements that it makes or ends, and stay.
// Call with the stack left, before pointers are looked at.
void settle_containers(State& state);

}  // namespace shadowib::portable
