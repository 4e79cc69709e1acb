#include "solver.h"

#include <algorithm>
#include <climits>

namespace cubes {

class CubeSolver::Stop : public CaDiCaL::Terminator {
 public:
  explicit Stop(int (*stop)()) : stop_(stop) {}
  bool terminate() override { return stop_ != nullptr && stop_() != 0; }
  int (*stop_)();
};

CubeSolver::CubeSolver(const Formula& formula, const Literals& extra)
    : formula_(formula),
      stop_(std::make_unique<Stop>(nullptr)),
      told_(static_cast<std::size_t>(formula.variables) + 1) {
  solver_.set("quiet", 1);
  solver_.reserve(formula.variables);
  for (const int literal : formula.literals) solver_.add(literal);
  for (const int literal : extra) solver_.add(literal);
  solver_.connect_terminator(stop_.get());
}

CubeSolver::~CubeSolver() { solver_.disconnect_terminator(); }

void CubeSolver::learn(const Literals& units) {
  for (; known_ < units.size(); ++known_) {
    solver_.add(units[known_]);
    solver_.add(0);
    told_[static_cast<std::size_t>(std::abs(units[known_]))] = true;
  }
}

Answer CubeSolver::solve(const Literals& cube, std::int64_t conflicts, int (*stop)()) {
  Answer answer;
  stop_->stop_ = stop;
  for (const int literal : cube) solver_.assume(literal);
  solver_.limit("conflicts", static_cast<int>(std::min<std::int64_t>(conflicts, INT_MAX)));
  answer.status = solver_.solve();
  if (answer.status == kSatisfiable) {
    answer.model.assign(told_.size(), -1);
    for (int v = 1; v <= formula_.variables; ++v)
      answer.model[static_cast<std::size_t>(v)] = solver_.val(v) > 0 ? 1 : -1;
    return answer;
  }
  if (answer.status == kUnsatisfiable)
    std::copy_if(cube.begin(), cube.end(), std::back_inserter(answer.core), [&](int l) { return solver_.failed(l); });
  const auto unit = [&](int literal) {
    if (told_[static_cast<std::size_t>(std::abs(literal))]) return;
    told_[static_cast<std::size_t>(std::abs(literal))] = true;
    answer.units.push_back(literal);
  };
  for (int v = 1; v <= formula_.variables; ++v)
    if (const int value = solver_.fixed(v); value != 0) unit(value > 0 ? v : -v);
  if (answer.status == kUnsatisfiable && answer.core.size() == 1) unit(-answer.core.front());
  return answer;
}

std::vector<Literals> look_ahead(const Formula& formula, int depth) {
  std::vector<Literals> found;
  if (depth > 0 && formula.variables > 0) {
    CaDiCaL::Solver solver;
    solver.set("quiet", 1);
    solver.reserve(formula.variables);
    for (const int literal : formula.literals) solver.add(literal);
    found = solver.generate_cubes(depth).cubes;
  }
  const auto strange = [&](int literal) { return literal == 0 || std::abs(literal) > formula.variables; };
  for (Literals& cube : found) cube.erase(std::remove_if(cube.begin(), cube.end(), strange), cube.end());
  if (found.empty()) found.emplace_back();
  return found;
}

int splitting_literal(const Formula& formula, const Literals& units, const Literals& cube, int (*stop)()) {
  std::vector<bool> bound(static_cast<std::size_t>(formula.variables) + 1);
  Formula narrowed = formula;
  for (const Literals* some : {&units, &cube}) {
    for (const int literal : *some) {
      bound[static_cast<std::size_t>(std::abs(literal))] = true;
      narrowed.literals.insert(narrowed.literals.end(), {literal, 0});
    }
  }
  if (stop == nullptr || stop() == 0)
    for (const Literals& found : look_ahead(narrowed, 1))
      for (const int literal : found)
        if (!bound[static_cast<std::size_t>(std::abs(literal))]) return literal;
  for (const int literal : formula.literals)
    if (literal != 0 && !bound[static_cast<std::size_t>(std::abs(literal))]) return literal;
  return 0;
}

}  // namespace cubes
