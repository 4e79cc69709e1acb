// The wayward backend's two files.
#pragma once

#include <cstdint>

namespace shadowib::ib2tcp {

// The first number of each kind of object: as told, and the same whenever it is not.
std::uint32_t wayward_first_number();

}  // namespace shadowib::ib2tcp
