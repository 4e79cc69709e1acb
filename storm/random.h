// Random numbers that depend on a key and a position only, so that both ends of a connection choose the same.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iterator>

namespace storm {

// A bijection that leaves no bit where it was (the finaliser of SplitMix64).
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <typename... Parts>
constexpr std::uint64_t key_of(Parts... parts) {
  std::uint64_t key = 0x9e3779b97f4a7c15u;
  ((key = mix(key + 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(parts))), ...);
  return key;
}

// A row of random numbers of one key.
class Dice {
 public:
  explicit constexpr Dice(std::uint64_t key) : at_(key) {}
  constexpr std::uint64_t next() { return mix(at_ += 0x9e3779b97f4a7c15u); }
  constexpr std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>((next() >> 32) * n >> 32); }
  constexpr std::uint32_t between(std::uint32_t low, std::uint32_t high) { return low + below(high - low + 1); }
  constexpr bool percent(std::uint32_t p) { return below(100) < p; }
  template <typename T>
  constexpr T pick(std::initializer_list<T> values) {
    return std::data(values)[below(static_cast<std::uint32_t>(values.size()))];
  }

 private:
  std::uint64_t at_;
};

}  // namespace storm
