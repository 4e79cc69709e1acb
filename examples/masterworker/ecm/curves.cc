#include "curves.h"

#include <stdexcept>

namespace factoring {
namespace {

// A mixing function (SplitMix64's finalizer): curves of all numbers and levels differ.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

const std::vector<Level>& table() {
  static const std::vector<Level> levels{{20, 11e3, 74},    {25, 5e4, 214},   {30, 25e4, 430},  {35, 1e6, 904},
                                         {40, 3e6, 2350},   {45, 11e6, 4480}, {50, 43e6, 7553}, {55, 11e7, 17769},
                                         {60, 26e7, 42017}, {65, 85e7, 69408}};
  return levels;
}

unsigned runs(const Level& level, bool all_methods) {
  return level.curves + (all_methods ? kMinusRuns + kPlusRuns : 0);
}

Curve make_curve(const Level& level, bool all_methods, std::uint32_t number, std::uint32_t level_index,
                 std::uint32_t index, std::uint64_t seed) {
  Curve curve{number, level_index, index, Method::kEcm, level.b1, 0};
  if (all_methods && index < kMinusRuns) {
    curve.method = Method::kMinus;
    curve.b1 *= 10;
  } else if (all_methods && index < kMinusRuns + kPlusRuns) {
    curve.method = Method::kPlus;
    curve.b1 *= 5;
  }
  const std::uint64_t random = mix(mix(mix(seed + number) + level_index) + index);
  curve.start = (random & 0xffffffff) | 8;  // small ones give singular curves
  return curve;
}

mpz_class Engine::run(const mpz_class& n, const Curve& curve, int (*stop)()) {
  // What ecm_factor() writes to, but for the product of primes, which the next curve of this B1 needs again.
  parameters_->B1done = ECM_DEFAULT_B1_DONE;
  mpz_set_ui(parameters_->x, 0);
  mpz_set_ui(parameters_->sigma, 0);
  mpz_set_ui(parameters_->go, 1);
  mpz_set_si(parameters_->B2, ECM_DEFAULT_B2);
  mpz_set_si(parameters_->B2min, ECM_DEFAULT_B2);
  parameters_->stop_asap = stop;
  switch (curve.method) {
    case Method::kEcm:
      parameters_->method = ECM_ECM;
      parameters_->param = ECM_PARAM_BATCH_SQUARE;
      mpz_set_ui(parameters_->sigma, curve.start);
      break;
    case Method::kMinus:
    case Method::kPlus:
      parameters_->method = curve.method == Method::kMinus ? ECM_PM1 : ECM_PP1;
      mpz_set_ui(parameters_->x, curve.start);
      break;
  }
  mpz_class factor, number = n;  // libecm may write to its argument
  const int found = ecm_factor(factor.get_mpz_t(), number.get_mpz_t(), curve.b1, parameters_);
  if (ECM_ERROR_P(found)) throw std::runtime_error("libecm reports an error: too little memory?");
  if (!ECM_FACTOR_FOUND_P(found) || factor < 1 || mpz_divisible_p(n.get_mpz_t(), factor.get_mpz_t()) == 0) return 1;
  return factor;
}

}  // namespace factoring
