// Random numbers that are the same with every library: mt19937_64 is specified, libraries' distributions are not.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

namespace shadowib::fedsim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  // In [0, 1), of 53 bits.
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }
  // In [0, count). Precondition: count > 0.
  std::uint64_t below(std::uint64_t count) {
    return static_cast<std::uint64_t>(uniform() * static_cast<double>(count));
  }
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace shadowib::fedsim
