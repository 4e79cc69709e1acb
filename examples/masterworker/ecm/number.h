// A number under factorisation: its primes, and its parts that are known to be composite.
#pragma once

#include <gmpxx.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace factoring {

// Values only, and no hidden state: after the same calls two objects are equal, in whatever process.
class Number {
 public:
  // `value` > 1. Primes below a million are divided out at once; what is left below 2^64 by Pollard's rho.
  Number(std::string name, const mpz_class& value);

  const std::string& name() const { return name_; }
  bool done() const { return composites_.empty(); }
  const std::vector<mpz_class>& composites() const { return composites_; }
  // Calls of split() that split something.
  std::uint32_t splits() const { return splits_; }

  // Has a composite part a proper divisor in common with `factor`?
  bool splits_by(const mpz_class& factor) const;
  // Takes the parts apart by it. True if there was one to take apart.
  bool split(const mpz_class& factor);

  // "2^3 * 5 * [c40 1234...]": each prime once, in order, then the composite parts. Throws std::logic_error unless
  // the number, divided by each in turn without remainder, leaves 1.
  std::string factors() const;

 private:
  void add(const mpz_class& part, unsigned times);

  std::string name_;
  mpz_class value_;
  std::map<mpz_class, unsigned> primes_;  // with their exponents; GMP's mpz_probab_prime_p() says prime
  std::vector<mpz_class> composites_;
  std::uint32_t splits_ = 0;
};

std::size_t digits(const mpz_class& value);

}  // namespace factoring
