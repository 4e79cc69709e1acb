#include "factoring.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

namespace factoring {

std::size_t State::unfinished() const {
  return static_cast<std::size_t>(
      std::count_if(numbers.begin(), numbers.end(), [](const Number& number) { return !number.done(); }));
}

// Level by level, and in each the numbers in their order: small factors of all come first.
std::optional<Curve> Factoring::next(const State& state) {
  report(state, false);
  for (; level_ < plan_.levels.size(); ++level_, number_ = 0) {
    const Level& level = plan_.levels[level_];
    for (; number_ < state.numbers.size(); ++number_, index_ = 0) {
      if (state.numbers[number_].done() || index_ == runs(level, plan_.all_methods)) continue;
      if (index_ == 0) say_level(state);
      return make_curve(level, plan_.all_methods, number_, level_, index_++, plan_.seed);
    }
  }
  return std::nullopt;
}

Found Factoring::work(const Curve& curve, const State& state, mw::Task& task) {
  const Number& number = state.numbers[curve.number];
  mpz_class all = 1;
  for (const mpz_class& part : number.composites()) {
    if (task.aborted()) break;
    all *= task.local<Engine>().run(part, curve, TOPC_is_abort_pending);
  }
  return {all.get_str(), number.splits(), task.aborted()};
}

mw::Action<Curve> Factoring::check(const Curve& curve, const Found& found, const State& state,
                                   const mw::Result& result) {
  const Number& number = state.numbers[curve.number];
  if (result.error() != nullptr) {
    ++failures_;
    std::fprintf(stderr, "ecm: %s: a run with B1=%.0f failed: %s\n", number.name().c_str(), curve.b1,
                 result.error()->c_str());
    return mw::done();
  }
  const mpz_class factor(found.factor);
  if (number.splits_by(factor)) {
    ++runs_;
    say_found(curve, found, state);
    Number after = number;
    after.split(factor);
    if (after.done() && state.unfinished() == 1) mw::abort_tasks();  // what still runs finds nothing new
    return mw::update();
  }
  // The worker's number was older, and it stopped at a factor that is known by now: what it had not tried is tried
  // again on what is left. A run without a factor counts for the parts, too.
  const bool stale = factor != 1 && found.splits != number.splits();
  if (!number.done() && (stale || found.aborted)) {
    ++again_;
    return mw::redo();
  }
  ++runs_;
  return mw::done();
}

void Factoring::update(State& state, const Curve& curve, const Found& found) {
  state.numbers[curve.number].split(mpz_class(found.factor));
}

void Factoring::report(const State& state, bool end) {
  const std::size_t before = reported_;
  for (; reported_ < state.numbers.size(); ++reported_) {
    const Number& number = state.numbers[reported_];
    if (!number.done() && !end) break;
    try {
      std::printf("%s = %s\n", number.name().c_str(), number.factors().c_str());
    } catch (const std::logic_error& wrong) {
      std::fprintf(stderr, "ecm: %s; please report this\n", wrong.what());
      std::exit(1);
    }
  }
  if (reported_ != before) std::fflush(stdout);
  if (end && !plan_.quiet) std::fprintf(stderr, "ecm: %lu runs, %lu results too old\n", runs_, again_);
}

void Factoring::say_found(const Curve& curve, const Found& found, const State& state) const {
  if (plan_.quiet) return;
  const char* methods[] = {"P-1", "P+1", "ECM"};
  std::fprintf(stderr, "ecm: %s: factor %s by %s, B1=%.0f, %s%llu, run %u of %u\n",
               state.numbers[curve.number].name().c_str(), found.factor.c_str(),
               methods[static_cast<unsigned>(curve.method)], curve.b1,
               curve.method == Method::kEcm ? "sigma=1:" : "x0=", static_cast<unsigned long long>(curve.start),
               curve.index + 1, runs(plan_.levels[curve.level], plan_.all_methods));
}

void Factoring::say_level(const State& state) const {
  if (plan_.quiet) return;
  const Number& number = state.numbers[number_];
  const Level& level = plan_.levels[level_];
  std::size_t longest = 0;
  for (const mpz_class& part : number.composites()) longest = std::max(longest, digits(part));
  const std::string aim = level.digits != 0 ? "for factors of " + std::to_string(level.digits) + " digits, " : "";
  std::fprintf(stderr, "ecm: %s: c%zu, %sB1=%.0f, %u runs\n", number.name().c_str(), longest, aim.c_str(), level.b1,
               runs(level, plan_.all_methods));
}

}  // namespace factoring
