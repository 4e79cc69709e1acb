// Names of the linker for functions and variables of C++.
#pragma once

#include <string>

namespace shadowib::portable {

// One name for what architectures name differently: size_t is `unsigned long` on one and `unsigned int` on another.
// Names of C stay as they are.
std::string canonical_name(const std::string& name);

// Likewise, but numbers with a sign keep their types: std::vector<int> and std::vector<long> have functions that take
// a size_t, and differ by the element alone.
std::string unsigned_name(const std::string& name);

// As the source has it, for messages: "Stack<int>::push(int)". Names of C stay as they are.
std::string readable_name(const std::string& name);

}  // namespace shadowib::portable
