#include "number.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace factoring {
namespace {

constexpr unsigned long kSmall = 1'000'000;
constexpr int kPrimeRounds = 25;  // Baillie-PSW, and one of Miller-Rabin

const std::vector<unsigned long>& small_primes() {
  static const std::vector<unsigned long> primes = [] {
    std::vector<bool> composite(kSmall);
    std::vector<unsigned long> found;
    for (unsigned long p = 2; p < kSmall; ++p) {
      if (composite[p]) continue;
      found.push_back(p);
      for (unsigned long multiple = p * p; multiple < kSmall; multiple += p) composite[multiple] = true;
    }
    return found;
  }();
  return primes;
}

// A proper divisor of a composite number below 2^64, by Pollard's rho with Floyd's cycles.
unsigned long rho(unsigned long n) {
  for (unsigned long constant = 1;; ++constant) {
    const auto step = [&](unsigned long x) {
      return static_cast<unsigned long>((static_cast<unsigned __int128>(x) * x + constant) % n);
    };
    unsigned long slow = 2, fast = 2, divisor = 1;
    while (divisor == 1) {
      slow = step(slow);
      fast = step(step(fast));
      divisor = std::gcd(slow > fast ? slow - fast : fast - slow, n);
    }
    if (divisor != n) return divisor;
  }
}

mpz_class common(const mpz_class& a, const mpz_class& b) { return gcd(a, b); }

}  // namespace

std::size_t digits(const mpz_class& value) { return value.get_str().size() - (value < 0 ? 1 : 0); }

Number::Number(std::string name, const mpz_class& value) : name_(std::move(name)), value_(value) {
  mpz_class left = value;
  for (const unsigned long p : small_primes()) {
    if (mpz_divisible_ui_p(left.get_mpz_t(), p) == 0) continue;
    unsigned& times = primes_[p];
    for (; mpz_divisible_ui_p(left.get_mpz_t(), p) != 0; ++times)
      mpz_divexact_ui(left.get_mpz_t(), left.get_mpz_t(), p);
  }
  add(left, 1);
}

// Sorts a part into primes and composites. ECM cannot see p^k, and finds all primes of a small part at once.
void Number::add(const mpz_class& part, unsigned times) {
  if (part == 1) return;
  if (mpz_probab_prime_p(part.get_mpz_t(), kPrimeRounds) != 0) {
    primes_[part] += times;
    return;
  }
  if (mpz_perfect_power_p(part.get_mpz_t()) != 0) {
    mpz_class root;
    // Its primes have 20 bits and more.
    for (unsigned long k = mpz_sizeinbase(part.get_mpz_t(), 2) / 19; k >= 2; --k) {
      if (mpz_root(root.get_mpz_t(), part.get_mpz_t(), k) == 0) continue;
      return add(root, times * static_cast<unsigned>(k));
    }
  }
  if (part.fits_ulong_p()) {
    const unsigned long divisor = rho(part.get_ui());
    add(divisor, times);
    return add(part / divisor, times);
  }
  composites_.insert(composites_.end(), times, part);
}

bool Number::splits_by(const mpz_class& factor) const {
  return std::any_of(composites_.begin(), composites_.end(), [&](const mpz_class& part) {
    const mpz_class divisor = common(part, factor);
    return divisor != 1 && divisor != part;
  });
}

bool Number::split(const mpz_class& factor) {
  if (!splits_by(factor)) return false;
  for (const mpz_class& part : std::exchange(composites_, {})) {
    const mpz_class divisor = common(part, factor);
    if (divisor == 1 || divisor == part) {
      composites_.push_back(part);
      continue;
    }
    add(divisor, 1);
    add(part / divisor, 1);
  }
  std::sort(composites_.begin(), composites_.end());
  ++splits_;
  return true;
}

std::string Number::factors() const {
  std::string text;
  mpz_class left = value_;
  const auto divide = [&](const mpz_class& by) {
    if (mpz_divisible_p(left.get_mpz_t(), by.get_mpz_t()) == 0)
      throw std::logic_error(by.get_str() + " does not divide " + name_);
    left /= by;
  };
  for (const auto& [prime, times] : primes_) {
    for (unsigned i = 0; i < times; ++i) divide(prime);
    text += (text.empty() ? "" : " * ") + prime.get_str() + (times > 1 ? "^" + std::to_string(times) : "");
  }
  for (const mpz_class& part : composites_) {
    divide(part);
    text += (text.empty() ? "[c" : " * [c") + std::to_string(digits(part)) + " " + part.get_str() + "]";
  }
  if (left != 1) throw std::logic_error("the factors of " + name_ + " leave " + left.get_str());
  return text;
}

}  // namespace factoring
