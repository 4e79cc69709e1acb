// The frames of a stack that was left: innermost first, as they left.
//
// Threads: the program's first thread only.
#pragma once

#include <memory>
#include <vector>

#include "libraries/portable/tables.h"

namespace shadowib::portable {

struct Frame {
  const Site* site = nullptr;
  std::unique_ptr<unsigned char[]> buffer;
};

struct LeftStack {
  std::vector<Frame> frames;
  std::size_t entered = 0;  // in mode ENTER: how many, from the outermost
};

LeftStack& left_stack();

// An address in `buffer`, where the program may hold pointers to the slot.
std::uint64_t slot_address(const Frame& frame, const Slot& slot);

// Told to the program's user, then the process ends: going on would compute garbage.
[[noreturn]] void broken(const char* text, const char* detail);

}  // namespace shadowib::portable
