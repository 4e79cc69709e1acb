#include "hooks/store/hex_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdio>

namespace shadowib {

struct HexHash::State {
  XXH3_state_t xxh3;
};

HexHash::HexHash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
HexHash::~HexHash() = default;

void HexHash::add(std::string_view bytes) {
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2)
    add_to_xxh3_avx2(&state_->xxh3, bytes.data(), bytes.size());
  else
    XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::string HexHash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  char digits[33];
  std::snprintf(digits, sizeof(digits), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return digits;
}

std::string hex_hash(std::string_view bytes) {
  HexHash hash;
  hash.add(bytes);
  return hash.hex();
}

}  // namespace shadowib
