// The content of an image: as text for people, and as one number that is equal on all architectures.
#pragma once

#include <cstdint>
#include <string>

#include "libraries/portable/image/image.h"

namespace shadowib::portable {

// XXH3-64 over all values that the program can reach, in an order that does not depend on addresses. Equal content
// gives an equal digest, whatever the architecture.
std::uint64_t digest(const Image& image);

// A line for each value. `most`: elements of an array that are shown; 0: all.
std::string to_text(const Image& image, std::uint64_t most);

}  // namespace shadowib::portable
