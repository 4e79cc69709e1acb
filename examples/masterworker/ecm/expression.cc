#include "expression.h"

#include <cctype>
#include <cstring>
#include <stdexcept>

namespace factoring {
namespace {

constexpr std::size_t kMostBits = 3'400'000;  // a million digits
constexpr int kMostGroups = 200;

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text.substr(0, text.find("//"))) {}

  mpz_class all() {
    const mpz_class value = sum();
    if (next() != '\0') expected("an operator");
    return value;
  }

 private:
  // The next character that is no space, or 0 at the end.
  char next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  [[noreturn]] void expected(const char* what) {
    const std::string place = next() == '\0' ? "at the end" : "at character " + std::to_string(at_ + 1);
    throw std::invalid_argument(std::string(what) + " was expected " + place);
  }
  static void check_bits(double bits) {
    if (bits > static_cast<double>(kMostBits)) throw std::invalid_argument("it has more than a million digits");
  }
  static double bits(const mpz_class& value) { return static_cast<double>(mpz_sizeinbase(value.get_mpz_t(), 2)); }
  // An operand of ! # ^: it counts something.
  unsigned long count(const mpz_class& value, const char* what) {
    if (sgn(value) < 0 || !value.fits_ulong_p())
      throw std::invalid_argument(std::string(what) + " is negative, or too large");
    return value.get_ui();
  }

  mpz_class sum() {
    mpz_class value = product();
    for (;;) {
      if (take('+'))
        value += product();
      else if (take('-'))
        value -= product();
      else
        return value;
    }
  }
  mpz_class product() {
    mpz_class value = signed_power();
    for (;;) {
      const char c = next();
      if (c == '\0' || std::strchr("*./%", c) == nullptr) return value;
      ++at_;
      const mpz_class right = signed_power();
      if (c == '*' || c == '.') {
        check_bits(bits(value) + bits(right));
        value *= right;
        continue;
      }
      if (right == 0) throw std::invalid_argument("it divides by zero");
      if (c == '%') {
        mpz_mod(value.get_mpz_t(), value.get_mpz_t(), right.get_mpz_t());
        continue;
      }
      if (!mpz_divisible_p(value.get_mpz_t(), right.get_mpz_t()))
        throw std::invalid_argument("a division leaves a remainder");
      mpz_divexact(value.get_mpz_t(), value.get_mpz_t(), right.get_mpz_t());
    }
  }
  mpz_class signed_power() {
    bool negative = false;
    for (;; negative = !negative)
      if (!take('-')) break;
    const mpz_class value = power();
    return negative ? mpz_class(-value) : value;
  }
  mpz_class power() {
    const mpz_class base = counted();
    if (!take('^')) return base;
    const Deeper deeper(*this);
    const unsigned long exponent = count(power(), "an exponent");
    if (abs(base) > 1) check_bits((bits(base) - 1) * static_cast<double>(exponent));
    mpz_class value;
    mpz_pow_ui(value.get_mpz_t(), base.get_mpz_t(), exponent);
    return value;
  }
  mpz_class counted() {
    mpz_class value = operand();
    for (;;) {
      if (take('!')) {
        const unsigned long n = count(value, "a factorial's argument");
        const unsigned long step =
            std::isdigit(static_cast<unsigned char>(next())) != 0 ? count(number(), "a step") : 1;
        if (step == 0) expected("a step above 0");
        check_bits(static_cast<double>(n) / static_cast<double>(step) * (bits(value) - 1.5));
        mpz_mfac_uiui(value.get_mpz_t(), n, step);
      } else if (take('#')) {
        const unsigned long n = count(value, "a primorial's argument");
        check_bits(1.5 * static_cast<double>(n));
        mpz_primorial_ui(value.get_mpz_t(), n);
      } else {
        return value;
      }
    }
  }
  mpz_class operand() {
    const char open = next();
    if (open == '\0' || std::strchr("([{", open) == nullptr) return number();
    const Deeper deeper(*this);
    ++at_;
    const mpz_class value = sum();
    const char close = next();
    if (close == '\0' || std::strchr(")]}", close) == nullptr) expected("a ')'");
    ++at_;
    return value;
  }
  mpz_class number() {
    std::string digits;
    while (std::isdigit(static_cast<unsigned char>(next())) != 0) digits += text_[at_++];
    if (digits.empty()) expected("a number");
    check_bits(3.3 * static_cast<double>(digits.size()));
    return mpz_class(digits, 10);
  }

  // Groups and powers call the parser again: on a long hostile line, until the stack is used up.
  struct Deeper {
    explicit Deeper(Parser& parser) : parser_(parser) {
      if (++parser.depth_ > kMostGroups) throw std::invalid_argument("it has too many groups in groups");
    }
    ~Deeper() { --parser_.depth_; }
    Parser& parser_;
  };

  const std::string text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

mpz_class evaluate(const std::string& text) { return Parser(text).all(); }

}  // namespace factoring
