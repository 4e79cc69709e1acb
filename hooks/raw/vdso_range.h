// Where the kernel's vdso is in this process.
#pragma once

#include <cstdint>

namespace shadowib {

struct VdsoRange {
  std::uint64_t start = 0, end = 0;
  bool contains(std::uint64_t address) const { return address >= start && address < end; }
};

// As the kernel says now: after a restart it may be elsewhere than the auxiliary vector says. Allocates nothing.
// Empty if there is none, or /proc is not mounted.
VdsoRange find_vdso();

}  // namespace shadowib
