// Frames of code that cannot be left, between a site and the program's main.
#pragma once

#include <cstdint>
#include <string>

namespace shadowib::portable {

// Walks the stack from the function that returns to `begin` up to `main_function`. Returns the reason of a refusal,
// which names the foreign function and the one that it called; empty if all frames can be left. Sets *depth_bytes:
// from here to main.
std::string foreign_frame(const void* begin, const void* main_function, std::uint64_t* depth_bytes);

// The reason of a refusal if this process has more than one thread, or if that cannot be known; else empty.
std::string other_threads();

}  // namespace shadowib::portable
