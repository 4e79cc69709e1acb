// The task farm: curves are tasks, found factors are UPDATEs.
#pragma once

#include <shadowib/masterworker.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "curves.h"
#include "number.h"

namespace factoring {

// The result of a Curve.
struct Found {
  std::string factor;        // decimal: the product of the parts' divisors; "1": none
  std::uint32_t splits = 0;  // of the number that the worker had
  bool aborted = false;
};

}  // namespace factoring

namespace shadowib::mw {
template <>
struct Bytes<factoring::Found> {
  static void put(std::string& to, const factoring::Found& found) {
    Bytes<std::string>::put(to, found.factor);
    Bytes<std::uint32_t>::put(to, found.splits);
    Bytes<bool>::put(to, found.aborted);
  }
  static factoring::Found take(const char*& from, const char* end) {
    factoring::Found found;
    found.factor = Bytes<std::string>::take(from, end);
    found.splits = Bytes<std::uint32_t>::take(from, end);
    found.aborted = Bytes<bool>::take(from, end);
    return found;
  }
};
}  // namespace shadowib::mw

namespace factoring {

// The shared data.
struct State {
  std::vector<Number> numbers;
  std::size_t unfinished() const;
};

// How a farm works; does not change.
struct Plan {
  std::vector<Level> levels = table();
  bool all_methods = true;
  std::uint64_t seed = 1;
  bool quiet = false;
};

class Factoring {
 public:
  explicit Factoring(Plan plan) : plan_(std::move(plan)) {}

  std::optional<Curve> next(const State& state);
  Found work(const Curve& curve, const State& state, mw::Task& task);
  mw::Action<Curve> check(const Curve& curve, const Found& found, const State& state, const mw::Result& result);
  void update(State& state, const Curve& curve, const Found& found);

  // Prints the numbers that are done, and at the end all, in their order: "NAME = FACTORS".
  void report(const State& state, bool end);
  unsigned long failures() const { return failures_; }

 private:
  void say_found(const Curve& curve, const Found& found, const State& state) const;
  void say_level(const State& state) const;

  Plan plan_;
  // The master's: where next() and report() are.
  std::uint32_t level_ = 0, number_ = 0, index_ = 0;
  std::size_t reported_ = 0;
  unsigned long runs_ = 0, again_ = 0, failures_ = 0;
};

}  // namespace factoring
