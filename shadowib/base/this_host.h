// The identity of this machine, and of containers on it with a network of their own.
#pragma once

#include <string>

namespace shadowib {

// A component of exchange keys: of the boot id and the network namespace. Not to be kept: after a restart it may be
// another.
std::string this_host();

// A machine fails as a whole, with all its containers. The first part of this_host().
std::string this_machine();

}  // namespace shadowib
