// System calls without libc: no errno, no cancellation points, no wrappers. Results are negative errno values on
// failure.
#pragma once

#include <asm/unistd.h>

#include <cstdint>

namespace shadowib::raw {

inline long call(long number, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0, std::uint64_t d = 0,
                 std::uint64_t e = 0, std::uint64_t f = 0) {
  long result;
  register std::uint64_t r10 __asm__("r10") = d;
  register std::uint64_t r8 __asm__("r8") = e;
  register std::uint64_t r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}

// Lets pointers and integers be passed alike.
template <typename T>
inline std::uint64_t word(T value) {
  if constexpr (__is_enum(T))
    return static_cast<std::uint64_t>(value);
  else
    return (std::uint64_t)(value);
}

template <typename... Args>
inline long invoke(long number, Args... args) {
  return call(number, word(args)...);
}

inline bool failed(long result) { return result < 0 && result >= -4095; }

}  // namespace shadowib::raw
