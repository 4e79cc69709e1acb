// Runs of P-1, P+1 and ECM by libecm: which ones a number gets, and one run.
#pragma once

#include <ecm.h>
#include <gmpxx.h>

#include <cstdint>
#include <vector>

namespace factoring {

// Finds factors of so many digits: `curves` of ECM with the bound `b1`.
struct Level {
  unsigned digits;
  double b1;
  unsigned curves;
};

// Table 1 of GMP-ECM's README, column "default poly".
const std::vector<Level>& table();

enum class Method : std::uint32_t { kMinus, kPlus, kEcm };

// One task: a run of one method on all composite parts of a number.
struct Curve {
  std::uint32_t number = 0, level = 0, index = 0;
  Method method = Method::kEcm;
  double b1 = 0;
  std::uint64_t start = 0;  // ECM: sigma of parametrisation 1, 32 bits; else x0
};

// GMP-ECM's README, "In summary": P-1 once with 10*B1, P+1 three times with 5*B1, then the curves.
constexpr unsigned kMinusRuns = 1, kPlusRuns = 3;
// Runs of a level: without the two other methods those of ECM alone.
unsigned runs(const Level& level, bool all_methods);
// Run `index` of a level. It depends on the arguments alone.
Curve make_curve(const Level& level, bool all_methods, std::uint32_t number, std::uint32_t level_index,
                 std::uint32_t index, std::uint64_t seed);

// One per process: libecm keeps the product of the primes up to B1 in it.
class Engine {
 public:
  Engine() { ecm_init(parameters_); }
  ~Engine() { ecm_clear(parameters_); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // A divisor of n above 1, or 1 if the run finds none or is told to stop. Throws std::runtime_error if libecm fails.
  mpz_class run(const mpz_class& n, const Curve& curve, int (*stop)());

 private:
  ecm_params parameters_;
};

}  // namespace factoring
