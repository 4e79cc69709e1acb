// The C++ library of the program, if it has one.
#pragma once

#include <string>

namespace shadowib::portable {

// The reason of a refusal if an exception is on its way or handled: no image holds it. Else empty.
std::string exception_at_hand();

// Writes what std::cout, cerr and clog still keep.
void flush_streams();

}  // namespace shadowib::portable
