// Counts the system calls of the exchange's code, per thread. The linker turns these calls to the functions here
// (--wrap, CMakeLists.txt).
#pragma once

#include <cstdint>

namespace shadowib {

struct CallCounts {
  std::uint64_t calls = 0;   // system calls of every kind
  std::uint64_t sleeps = 0;  // those among them that may wait: poll, nanosleep, futex
};

// This thread has made so many since it began.
CallCounts& call_counts();

}  // namespace shadowib
