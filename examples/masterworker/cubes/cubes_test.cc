#include <gtest/gtest.h>

#include <new>
#include <sstream>
#include <stdexcept>

#include "conquest.h"
#include "formula.h"
#include "solver.h"

namespace {

using cubes::Answer;
using cubes::Formula;
using cubes::Literals;

Formula formula(const std::string& text) {
  std::istringstream in(text);
  return cubes::read_formula(in);
}
std::string wrong(const std::string& text) {
  try {
    return "no error, but " + std::to_string(formula(text).clauses) + " clauses";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

// Pigeons in one hole fewer.
Formula pigeons(int holes) {
  Formula f;
  f.variables = holes * (holes + 1);
  const auto in = [&](int pigeon, int hole) { return pigeon * holes + hole + 1; };
  const auto clause = [&](Literals clause) {
    clause.push_back(0);
    f.literals.insert(f.literals.end(), clause.begin(), clause.end());
    ++f.clauses;
  };
  for (int pigeon = 0; pigeon <= holes; ++pigeon) {
    Literals somewhere;
    for (int hole = 0; hole < holes; ++hole) somewhere.push_back(in(pigeon, hole));
    clause(somewhere);
    for (int other = 0; other < pigeon; ++other)
      for (int hole = 0; hole < holes; ++hole) clause({-in(pigeon, hole), -in(other, hole)});
  }
  return f;
}

TEST(Formulas, AreReadAsDimacsAndIcnf) {
  const Formula f = formula("c hello\n\np cnf 3 2\n1 -2\n 0\t2 3 0\r\n%\n0\n");
  EXPECT_EQ(f.variables, 3);
  EXPECT_EQ(f.clauses, 2u);
  EXPECT_EQ(f.literals, (Literals{1, -2, 0, 2, 3, 0}));
  const Formula i = formula("p inccnf\n1 -2 0\na 1 0\na -1 7 0\n");
  EXPECT_EQ(i.variables, 7);
  EXPECT_EQ(i.cubes, (std::vector<Literals>{{1}, {-1, 7}}));
  EXPECT_EQ(formula("p cnf 0 0\n").clauses, 0u);
}

TEST(Formulas, SayWhatIsWrong) {
  EXPECT_EQ(wrong(""), "line 0: there is no header 'p cnf VARIABLES CLAUSES'");
  EXPECT_EQ(wrong("1 2 0\n"), "line 1: 'p cnf VARIABLES CLAUSES' or 'p inccnf' was expected");
  EXPECT_EQ(wrong("p cnf 2\n"), "line 1: the header needs two numbers: variables and clauses");
  EXPECT_EQ(wrong("p cnf 2 1 1\n"), "line 1: '1' behind the header");
  EXPECT_EQ(wrong("p cnf 999999999999 1\n"), "line 1: it has more than 536870911 variables");
  EXPECT_EQ(wrong("p cnf 2 1\n1 3 0\n"), "line 2: '3' is beyond the header's 2 variables");
  EXPECT_EQ(wrong("p cnf 2 1\n1 -99999999999999999999 0\n"),
            "line 2: '-99999999999999999999' is beyond the header's 2 variables");
  EXPECT_EQ(wrong("p cnf 2 1\n1 2x 0\n"), "line 2: '2x' is no literal");
  EXPECT_EQ(wrong("p cnf 2 1\n1 2\n"), "line 2: the last clause does not end with 0");
  EXPECT_EQ(wrong("p cnf 2 2\n1 2 0\n"), "line 2: the header promises 2 clauses, and 1 came");
  EXPECT_EQ(wrong("p inccnf\n1 0\na 1\n"), "line 3: a cube ends with 0");
  EXPECT_EQ(wrong("p inccnf\n1 0\na 1 0 2 0\n"), "line 3: a line has one cube");
}

TEST(Formulas, KnowTheirModels) {
  const Formula f = formula("p cnf 3 2\n1 -2 0\n2 3 0\n");
  EXPECT_TRUE(f.satisfied_by({0, 1, 1, -1}));
  EXPECT_FALSE(f.satisfied_by({0, -1, 1, -1}));
  EXPECT_FALSE(f.satisfied_by({0, 1, -1, -1}));
}

TEST(Solver, AnswersForCubesAndKeepsUnits) {
  // 1 is implied; 2 and 3 exclude each other.
  const Formula f = formula("p cnf 4 4\n1 4 0\n1 -4 0\n-2 -3 0\n-1 2 3 0\n");
  cubes::CubeSolver solver(f);
  Answer answer = solver.solve({4, 2, 3}, 1000, nullptr);
  EXPECT_EQ(answer.status, cubes::kUnsatisfiable);
  EXPECT_EQ(answer.core, (Literals{2, 3}));
  answer = solver.solve({-1, 2}, 1000, nullptr);
  EXPECT_EQ(answer.status, cubes::kUnsatisfiable);
  EXPECT_EQ(answer.core, (Literals{-1}));
  EXPECT_EQ(answer.units, (Literals{1}));
  solver.learn({1, -2});
  EXPECT_EQ(solver.known(), 2u);
  answer = solver.solve({}, 1000, nullptr);
  ASSERT_EQ(answer.status, cubes::kSatisfiable);
  EXPECT_TRUE(f.satisfied_by(answer.model));
  EXPECT_EQ(answer.model[3], 1);
}

TEST(Solver, ComesBackWithALiteralToSplitBy) {
  const Formula f = pigeons(9);
  cubes::CubeSolver solver(f);
  const Answer answer = solver.solve({1}, 50, nullptr);
  EXPECT_EQ(answer.status, cubes::kUnknown);
  const int literal = splitting_literal(f, {2}, {1, 11}, nullptr);
  ASSERT_NE(literal, 0);
  for (const int bound : {1, 2, 11}) EXPECT_NE(std::abs(literal), bound);
  EXPECT_EQ(solver.solve({1}, 1 << 30, [] { return 1; }).status, cubes::kUnknown) << "it was to stop";
  EXPECT_EQ(splitting_literal(formula("p cnf 2 1\n1 2 0\n"), {1}, {-2}, nullptr), 0);
}

struct Counted : cubes::Conquest {
  using Conquest::Conquest;
  Answer work(const cubes::Cube& cube, const cubes::State& state, mw::Task& task) {
    ++rounds;
    return Conquest::work(cube, state, task);
  }
  unsigned rounds = 0;
};
struct Throwing : cubes::Conquest {
  using Conquest::Conquest;
  Answer work(const cubes::Cube&, const cubes::State&, mw::Task&) { throw std::bad_alloc(); }
};
struct Lying : cubes::Conquest {
  using Conquest::Conquest;
  Answer work(const cubes::Cube&, const cubes::State& state, mw::Task&) {
    Answer answer;
    answer.status = cubes::kSatisfiable;
    answer.model.assign(state.values.size(), -1);
    return answer;
  }
};

// A farm in this process.
template <typename Farm>
int run(Farm& farm, cubes::State& state) {
  char name[] = "cubes_test";
  char* words[] = {name, nullptr};
  char** argv = words;
  int argc = 1;
  mw::run(farm, state, argc, argv);
  return farm.status();
}

int conquer(const Formula& f, std::vector<Literals> some, std::int64_t conflicts, unsigned* rounds) {
  cubes::State state(f, std::move(some));
  Counted farm({conflicts, true}, state);
  const int status = run(farm, state);
  *rounds = farm.rounds;
  if (status == cubes::kSatisfiable) {
    EXPECT_TRUE(f.satisfied_by(farm.model()));
  }
  return status;
}

TEST(Conquests, RefuteByCubesThatCoverAllOrNot) {
  const Formula f = pigeons(6);
  unsigned rounds;
  EXPECT_EQ(conquer(f, cubes::look_ahead(f, 3), 1 << 20, &rounds), cubes::kUnsatisfiable);
  EXPECT_GT(rounds, 2u);
  EXPECT_EQ(conquer(f, {{1, 8}, {-1, 9}}, 1 << 20, &rounds), cubes::kUnsatisfiable);
  EXPECT_EQ(conquer(f, {{}}, 1 << 20, &rounds), cubes::kUnsatisfiable);
  EXPECT_EQ(rounds, 1u);
}

TEST(Conquests, FindWhatIsInNoCube) {
  // All models have 1 and 2; no cube has one.
  const Formula f = formula("p cnf 3 2\n1 0\n2 3 0\n");
  unsigned rounds;
  EXPECT_EQ(conquer(f, {{-1, 3}, {-2, -3}}, 1000, &rounds), cubes::kSatisfiable);
  EXPECT_EQ(rounds, 3u);
  EXPECT_EQ(conquer(formula("p cnf 2 0\n"), {{1, 2}}, 1000, &rounds), cubes::kSatisfiable);
  EXPECT_EQ(conquer(formula("p cnf 0 0\n"), {{}}, 1000, &rounds), cubes::kSatisfiable);
  EXPECT_EQ(conquer(formula("p cnf 0 1\n0\n"), {{}}, 1000, &rounds), cubes::kUnsatisfiable);
}

TEST(Conquests, SplitHardCubes) {
  const Formula f = pigeons(7);
  unsigned rounds;
  EXPECT_EQ(conquer(f, cubes::look_ahead(f, 1), 30, &rounds), cubes::kUnsatisfiable);
  EXPECT_GT(rounds, 5u);
}

TEST(Conquests, LoseNoCubeInSilence) {
  cubes::State state(pigeons(3), {{1}, {-1}});
  Throwing farm({1000, true}, state);
  EXPECT_EQ(run(farm, state), cubes::kUnknown);
}

TEST(Conquests, BelieveNoModelThatIsNone) {
  cubes::State state(formula("p cnf 2 1\n1 2 0\n"), {{1}});
  Lying farm({1000, true}, state);
  EXPECT_EQ(run(farm, state), cubes::kUnknown);
}

}  // namespace
