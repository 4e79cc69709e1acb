#include "storm/payload.h"

#include <algorithm>
#include <cstring>

#include "storm/random.h"

namespace storm {
namespace {

constexpr std::uint64_t kLanded = 0x6c616e646564u, kSeal = 0x7365616cu;

// The first word tells the number, the others differ from their neighbours' and from those of other messages.
std::uint64_t word(std::uint64_t key, std::uint64_t sequence, std::size_t at) {
  return at == 0 ? sequence ^ key : (sequence + 1) * 0x9e3779b97f4a7c15u + at * 0xc2b2ae3d27d4eb4fu + key;
}

std::uint64_t seal_word(std::uint64_t key, std::uint64_t sequence, std::size_t at) {
  return mix(key + kSeal + sequence) + at * 0xc2b2ae3d27d4eb4eu;
}

}  // namespace

void fill(std::uint8_t* bytes, std::size_t size, std::uint64_t key, std::uint64_t sequence) {
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t w = word(key, sequence, at / 8);
    std::memcpy(bytes + at, &w, std::min<std::size_t>(8, size - at));
  }
}

std::optional<std::size_t> first_difference(const std::uint8_t* bytes, std::size_t from, std::size_t size,
                                            std::uint64_t key, std::uint64_t sequence) {
  for (std::size_t at = from; at < size;) {
    const std::uint64_t w = word(key, sequence, at / 8);
    const std::size_t within = at % 8, n = std::min(8 - within, size - at);
    const auto* expected = reinterpret_cast<const std::uint8_t*>(&w) + within;
    if (std::memcmp(bytes + (at - from), expected, n) != 0) {
      for (std::size_t i = 0; i < n; ++i)
        if (bytes[at - from + i] != expected[i]) return at + i;
    }
    at += n;
  }
  return std::nullopt;
}

std::uint64_t sequence_in(const std::uint8_t* bytes, std::uint64_t key) {
  std::uint64_t w;
  std::memcpy(&w, bytes, sizeof(w));
  return w ^ key;
}

std::uint64_t landed_word(std::uint64_t key, std::uint64_t sequence) { return mix(key + kLanded + sequence) | 1; }

void seal(std::uint8_t* place, std::size_t size, std::uint64_t key, std::uint64_t sequence) {
  for (std::size_t at = 0; at < size; at += 8) {
    std::uint64_t w = seal_word(key, sequence, at / 8);
    if (at + 8 == size) w &= ~1ull;
    std::memcpy(place + at, &w, 8);
  }
}

bool sealed(const std::uint8_t* place, std::size_t size, std::uint64_t key, std::uint64_t sequence) {
  for (std::size_t at = 0; at < size; at += 8) {
    std::uint64_t found, w = seal_word(key, sequence, at / 8);
    if (at + 8 == size) w &= ~1ull;
    std::memcpy(&found, place + at, 8);
    if (found != w) return false;
  }
  return true;
}

std::uint64_t last_word(const std::uint8_t* place, std::size_t size) {
  return __atomic_load_n(reinterpret_cast<const std::uint64_t*>(place + size - 8), __ATOMIC_ACQUIRE);
}

}  // namespace storm
