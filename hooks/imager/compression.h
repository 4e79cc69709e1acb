// How the pages of an image are compressed.
#pragma once

#include <cstdint>
#include <string_view>

namespace shadowib {

enum class Compression : std::uint32_t { kNone, kLz4, kZstd };

inline constexpr const char* kCompressionNames[] = {"none", "lz4", "zstd"};

inline const char* compression_name(Compression compression) {
  return kCompressionNames[static_cast<std::uint32_t>(compression)];
}

// False, and kNone, for any other name.
inline bool parse_compression(std::string_view name, Compression* compression) {
  *compression = Compression::kNone;
  for (const Compression each : {Compression::kNone, Compression::kLz4, Compression::kZstd}) {
    if (name != compression_name(each)) continue;
    *compression = each;
    return true;
  }
  return false;
}

}  // namespace shadowib
