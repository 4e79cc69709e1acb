// The task farm: cubes are tasks, learned units are UPDATEs, a hard cube comes back to be split.
//
// The cubes need not cover all assignments: one more task is the rest, the formula with each cube negated. So
// "unsatisfiable" does not depend on those who made the cubes.
#pragma once

#include <shadowib/masterworker.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formula.h"
#include "solver.h"

namespace cubes {

struct Cube {
  Literals literals;
  std::int64_t conflicts = 0;  // after so many it comes back
  bool rest = false;           // not a cube, but all that is in none
  double share = 0;            // of the work, for people: halved with each split
};

}  // namespace cubes

namespace shadowib::mw {
template <>
struct Bytes<cubes::Cube> {
  static void put(std::string& to, const cubes::Cube& cube) {
    Bytes<cubes::Literals>::put(to, cube.literals);
    Bytes<std::int64_t>::put(to, cube.conflicts);
    Bytes<bool>::put(to, cube.rest);
    Bytes<double>::put(to, cube.share);
  }
  static cubes::Cube take(const char*& from, const char* end) {
    cubes::Cube cube;
    cube.literals = Bytes<cubes::Literals>::take(from, end);
    cube.conflicts = Bytes<std::int64_t>::take(from, end);
    cube.rest = Bytes<bool>::take(from, end);
    cube.share = Bytes<double>::take(from, end);
    return cube;
  }
};

template <>
struct Bytes<cubes::Answer> {
  static void put(std::string& to, const cubes::Answer& answer) {
    Bytes<int>::put(to, answer.status);
    Bytes<std::vector<signed char>>::put(to, answer.model);
    Bytes<cubes::Literals>::put(to, answer.core);
    Bytes<cubes::Literals>::put(to, answer.units);
    Bytes<int>::put(to, answer.split);
  }
  static cubes::Answer take(const char*& from, const char* end) {
    cubes::Answer answer;
    answer.status = Bytes<int>::take(from, end);
    answer.model = Bytes<std::vector<signed char>>::take(from, end);
    answer.core = Bytes<cubes::Literals>::take(from, end);
    answer.units = Bytes<cubes::Literals>::take(from, end);
    answer.split = Bytes<int>::take(from, end);
    return answer;
  }
};
}  // namespace shadowib::mw

namespace cubes {

// The shared data.
struct State {
  Formula formula;
  std::vector<Literals> cubes;      // those of the beginning
  Literals units;                   // of the formula, in the order that they came
  std::vector<signed char> values;  // the same by variable: 1, -1, or 0

  State(Formula formula, std::vector<Literals> cubes);
  bool knows(int literal) const;  // it is a unit
};

struct Plan {
  std::int64_t conflicts = 20000;  // of a cube; half as many more each time that it is split
  bool quiet = false;
};

class Conquest {
 public:
  Conquest(Plan plan, const State& state);

  std::optional<Cube> next(const State& state);
  Answer work(const Cube& cube, const State& state, mw::Task& task);
  mw::Action<Cube> check(const Cube& cube, const Answer& answer, const State& state, const mw::Result& result);
  void update(State& state, const Cube& cube, const Answer& answer);

  // After the farm: kUnknown if a cube was lost, or a model was none.
  int status() const;
  const std::vector<signed char>& model() const { return model_; }
  void say(const State& state) const;

 private:
  bool over() const { return !model_.empty() || refuted_ || wrong_; }
  void finish();
  void refute(const Cube& cube, const Literals& core);
  void split(const Cube& cube, int literal);
  void progress(const State& state);

  Plan plan_;
  // A worker's: made at its first task, and better with each one.
  std::unique_ptr<CubeSolver> cube_solver_, rest_solver_;
  // The master's.
  std::deque<Cube> waiting_;
  std::vector<signed char> model_;
  bool refuted_ = false, wrong_ = false;
  double done_ = 0;  // shares
  int percent_ = 0;
  unsigned long refutations_ = 0, splits_ = 0, dropped_ = 0, failures_ = 0;
};

}  // namespace cubes
