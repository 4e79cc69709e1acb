// Words of 1 to 8 bytes in either byte order.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace shadowib::portable {

// Any address will do. `bytes` is 1 to 8; inlined, so that a constant costs one load.
inline std::uint64_t load_word(const unsigned char* at, unsigned bytes, bool big_endian) {
  constexpr bool kBigHere = std::endian::native == std::endian::big;
  std::uint64_t word = 0;
  std::memcpy(reinterpret_cast<unsigned char*>(&word) + (kBigHere ? sizeof word - bytes : 0), at, bytes);
  return big_endian == kBigHere ? word : __builtin_bswap64(word) >> (8 * (sizeof word - bytes));
}

inline std::uint64_t get_le(const unsigned char* at, unsigned bytes) { return load_word(at, bytes, false); }

}  // namespace shadowib::portable
