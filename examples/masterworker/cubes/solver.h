// CaDiCaL for cubes: one solver that keeps what it has learned, and lookahead.
#pragma once

#include <cadical.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "formula.h"

namespace cubes {

enum Status { kUnknown = 0, kSatisfiable = 10, kUnsatisfiable = 20 };  // CaDiCaL's

// An answer for one cube.
struct Answer {
  int status = kUnknown;
  std::vector<signed char> model;  // kSatisfiable: by variable, 1 or -1
  Literals core;                   // kUnsatisfiable: literals of the cube that suffice
  Literals units;                  // literals that the formula implies, and that were not known
  int split = 0;                   // kUnknown: a literal to split the cube by; 0: none was looked for
};

class CubeSolver {
 public:
  // `extra`: more clauses, each ended by 0. `formula` lives longer.
  explicit CubeSolver(const Formula& formula, const Literals& extra = {});
  ~CubeSolver();

  // Tells it units; those from number `known()` on are new to it.
  void learn(const Literals& units);
  std::size_t known() const { return known_; }

  // Solves the formula under the cube within so many conflicts. Returns early, with kUnknown, once stop() != 0.
  Answer solve(const Literals& cube, std::int64_t conflicts, int (*stop)());

 private:
  class Stop;
  const Formula& formula_;
  std::unique_ptr<Stop> stop_;
  CaDiCaL::Solver solver_;
  std::size_t known_ = 0;
  std::vector<bool> told_;  // units, by variable
};

// Up to 2^depth cubes by CaDiCaL's lookahead; one that is empty if lookahead has nothing to split. They need not
// cover all: see Conquest.
std::vector<Literals> look_ahead(const Formula& formula, int depth);

// A literal to split `cube` by, given units: lookahead's, or else that of any variable which is free.
// 0: none is free.
int splitting_literal(const Formula& formula, const Literals& units, const Literals& cube, int (*stop)());

}  // namespace cubes
