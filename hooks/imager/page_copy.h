// Copying many pages of a program's memory, in a process where they may not have been used yet.
#pragma once

#include <cstdint>

#include "hooks/imager/image_format.h"

namespace shadowib {

// The processor notes each page's first use, and after a fork every use is a first one: that takes longer than the
// copy. Asked for so far ahead, it goes on beside the copy. A prefetch never faults.
inline void expect_page(const void* now) { __builtin_prefetch(static_cast<const std::uint8_t*>(now) + 2 * kPage); }

// Whole pages, both addresses aligned to 16. Not by memcpy, which is one instruction here that some processors, and
// all emulators, take byte by byte.
inline void copy_pages(void* to, const void* from, std::uint64_t bytes) {
  using Vector = std::uint64_t __attribute__((vector_size(16), may_alias));
  constexpr std::uint64_t kVectors = kPage / sizeof(Vector);
  auto* out = static_cast<Vector*>(to);
  const auto* in = static_cast<const Vector*>(from);
  for (const Vector* const end = in + bytes / sizeof(Vector); in != end;) {
    expect_page(in);
    for (const Vector* const page = in + kVectors; in != page; in += 4, out += 4) {
      const Vector a = in[0], b = in[1], c = in[2], d = in[3];
      out[0] = a, out[1] = b, out[2] = c, out[3] = d;
    }
  }
}

}  // namespace shadowib
