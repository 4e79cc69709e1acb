// The name of a pack's file: "member-N.<set id in hex>.pages", of the image's member and the pack's set.
//
// For the saving side, which has no heap, and for commands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace shadowib {

inline constexpr std::size_t kPackNameBytes = 80;

// Writes the name to name[0..kPackNameBytes).
inline void name_pack(std::uint32_t member, const std::uint8_t set_id[16], char* name) {
  static constexpr char kDigits[] = "0123456789abcdef";
  char hex[33] = {};
  for (int i = 0; i < 16; ++i) {
    hex[2 * i] = kDigits[set_id[i] >> 4];
    hex[2 * i + 1] = kDigits[set_id[i] & 15];
  }
  std::snprintf(name, kPackNameBytes, "member-%u.%s.pages", member, hex);
}

}  // namespace shadowib
