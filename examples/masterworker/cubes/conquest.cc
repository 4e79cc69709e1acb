#include "conquest.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace cubes {
namespace {

std::unique_ptr<CubeSolver> solver_of_rest(const State& state) {
  Literals none_of_them;
  for (const Literals& cube : state.cubes) {
    for (const int literal : cube) none_of_them.push_back(-literal);
    none_of_them.push_back(0);
  }
  return std::make_unique<CubeSolver>(state.formula, none_of_them);
}

bool contains(const Literals& cube, const Literals& core) {
  return std::all_of(core.begin(), core.end(),
                     [&](int literal) { return std::find(cube.begin(), cube.end(), literal) != cube.end(); });
}

}  // namespace

State::State(Formula all, std::vector<Literals> first)
    : formula(std::move(all)), cubes(std::move(first)), values(static_cast<std::size_t>(formula.variables) + 1) {}

bool State::knows(int literal) const {
  return values[static_cast<std::size_t>(std::abs(literal))] == (literal > 0 ? 1 : -1);
}

Conquest::Conquest(Plan plan, const State& state) : plan_(plan) {
  const double share = 1.0 / static_cast<double>(state.cubes.size() + 1);
  for (const Literals& cube : state.cubes) waiting_.push_back({cube, plan.conflicts, false, share});
  // Empty cubes cover all.
  const bool all = std::any_of(state.cubes.begin(), state.cubes.end(), [](const Literals& c) { return c.empty(); });
  if (!all) waiting_.push_back({{}, plan.conflicts, true, share});
}

std::optional<Cube> Conquest::next(const State& state) {
  while (!over() && !waiting_.empty()) {
    Cube cube = std::move(waiting_.front());
    waiting_.pop_front();
    const bool refuted =
        std::any_of(cube.literals.begin(), cube.literals.end(), [&](int l) { return state.knows(-l); });
    if (!refuted) return cube;
    ++dropped_;
    done_ += cube.share;
  }
  return std::nullopt;
}

Answer Conquest::work(const Cube& cube, const State& state, mw::Task& task) {
  std::unique_ptr<CubeSolver>& solver = cube.rest ? rest_solver_ : cube_solver_;
  if (!solver) solver = cube.rest ? solver_of_rest(state) : std::make_unique<CubeSolver>(state.formula);
  solver->learn(state.units);
  Answer answer = solver->solve(cube.literals, cube.conflicts, TOPC_is_abort_pending);
  if (cube.rest)
    answer.units.clear();  // they follow from the negated cubes, too
  else if (answer.status == kUnknown && !task.aborted())
    answer.split = splitting_literal(state.formula, state.units, cube.literals, TOPC_is_abort_pending);
  return answer;
}

mw::Action<Cube> Conquest::check(const Cube& cube, const Answer& answer, const State& state,
                                 const mw::Result& result) {
  if (over()) return mw::done();
  if (result.error() != nullptr) {
    ++failures_;
    std::fprintf(stderr, "cubes: a cube of %zu literals is lost: %s\n", cube.literals.size(),
                 result.error()->c_str());
    return mw::done();
  }
  switch (answer.status) {
    case kSatisfiable:
      if (answer.model.size() != state.values.size() || !state.formula.satisfied_by(answer.model)) {
        wrong_ = true;
        std::fprintf(stderr, "cubes: a model is none; please report this\n");
      } else {
        model_ = answer.model;
      }
      finish();
      return mw::done();
    case kUnsatisfiable:
      refute(cube, answer.core);
      break;
    default:
      split(cube, answer.split);
  }
  progress(state);
  const bool news =
      std::any_of(answer.units.begin(), answer.units.end(), [&](int literal) { return !state.knows(literal); });
  if (news && !over()) return mw::update();
  return mw::done();
}

void Conquest::update(State& state, const Cube&, const Answer& answer) {
  for (const int literal : answer.units) {
    if (state.knows(literal)) continue;
    state.units.push_back(literal);
    state.values[static_cast<std::size_t>(std::abs(literal))] = literal > 0 ? 1 : -1;
  }
}

void Conquest::progress(const State& state) {
  const int percent = static_cast<int>(100 * done_);
  if (plan_.quiet || percent <= percent_) return;
  percent_ = percent;
  std::printf("c %d%%: %lu cubes refuted, %lu dropped, %lu split, %zu units\n", percent, refutations_, dropped_,
              splits_, state.units.size());
  std::fflush(stdout);
}

void Conquest::finish() {
  waiting_.clear();
  mw::abort_tasks();
}

void Conquest::refute(const Cube& cube, const Literals& core) {
  ++refutations_;
  done_ += cube.share;
  if (cube.rest) return;
  if (core.empty()) {  // the formula itself
    refuted_ = true;
    return finish();
  }
  if (core.size() == cube.literals.size()) return;
  const auto refuted = [&](const Cube& other) {
    if (other.rest || !contains(other.literals, core)) return false;
    ++dropped_;
    done_ += other.share;
    return true;
  };
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), refuted), waiting_.end());
}

void Conquest::split(const Cube& cube, int literal) {
  Cube half = cube;
  half.conflicts += half.conflicts / 2 + 1;
  if (literal == 0) {  // the rest, or a cube that was interrupted
    waiting_.push_front(std::move(half));
    return;
  }
  ++splits_;
  half.share /= 2;
  half.literals.push_back(literal);
  waiting_.push_front(half);
  half.literals.back() = -literal;
  waiting_.push_front(std::move(half));
}

int Conquest::status() const {
  if (!model_.empty()) return kSatisfiable;
  if (wrong_ || (failures_ != 0 && !refuted_)) return kUnknown;
  return kUnsatisfiable;
}

void Conquest::say(const State& state) const {
  if (plan_.quiet) return;
  std::printf("c %lu cubes refuted, %lu dropped for cores and units, %lu split, %zu units\n", refutations_, dropped_,
              splits_, state.units.size());
  std::fflush(stdout);
}

}  // namespace cubes
