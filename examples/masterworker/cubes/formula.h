// Formulas in conjunctive normal form, as DIMACS and iCNF files have them.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

namespace cubes {

// Literals: v or -v, v from 1.
using Literals = std::vector<int>;

struct Formula {
  int variables = 0;
  std::size_t clauses = 0;
  Literals literals;            // all clauses; each ends with 0
  std::vector<Literals> cubes;  // iCNF's lines "a ... 0"

  // Does the model make each clause true? model[v] > 0: v is true; model has variables + 1 elements.
  bool satisfied_by(const std::vector<signed char>& model) const;
};

// Reads "p cnf V C" or "p inccnf", clauses, and lines "a LITERALS 0" that are cubes. Throws std::runtime_error with a
// message for people: the line, and what is wrong with it. A header that promises fewer variables or other clauses
// than come is wrong. Source: the DIMACS format; march_cu and CaDiCaL write such cubes.
Formula read_formula(std::istream& in);

// The cubes of a file alone, lines "a LITERALS 0"; literals of at most `variables`. Throws as above.
std::vector<Literals> read_cubes(std::istream& in, int variables);

}  // namespace cubes
