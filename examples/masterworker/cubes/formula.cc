#include "formula.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <istream>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace cubes {
namespace {

constexpr long kMostVariables = std::numeric_limits<int>::max() / 4;  // CaDiCaL has two literals for each

class Reader {
 public:
  explicit Reader(std::istream& in) : in_(in) {}

  // The next line that is neither empty nor a comment. False at the end.
  bool next() {
    while (std::getline(in_, line_)) {
      ++number_;
      if (line_.compare(0, 1, "%") == 0) return false;  // SATLIB's files end so
      const std::size_t first = line_.find_first_not_of(" \t\r");
      if (first != std::string::npos && line_[first] != 'c') return true;
    }
    if (in_.bad()) wrong("cannot be read");
    return false;
  }
  const std::string& line() const { return line_; }
  [[noreturn]] void wrong(const std::string& what) const {
    throw std::runtime_error("line " + std::to_string(number_) + ": " + what);
  }

  // Appends the line's numbers from `at` on.
  void numbers(std::size_t at, Literals& to, int variables) const {
    const char* from = line_.c_str() + at;
    for (;;) {
      from += std::strspn(from, " \t\r");
      if (*from == '\0') return;
      char* end = nullptr;
      const long literal = std::strtol(from, &end, 10);
      const std::string word(from, std::strcspn(from, " \t\r"));
      if (end != from + word.size()) wrong("'" + word + "' is no literal");
      if (literal > variables || literal < -static_cast<long>(variables))
        wrong("'" + word + "' is beyond the header's " + std::to_string(variables) + " variables");
      to.push_back(static_cast<int>(literal));
      from = end;
    }
  }
  void cube(std::vector<Literals>& to, int variables) const {
    Literals cube;
    numbers(line_.find('a') + 1, cube, variables);
    if (cube.empty() || cube.back() != 0) wrong("a cube ends with 0");
    cube.pop_back();
    for (const int literal : cube)
      if (literal == 0) wrong("a line has one cube");
    to.push_back(std::move(cube));
  }
  bool is_cube() const { return line_[line_.find_first_not_of(" \t\r")] == 'a'; }

 private:
  std::istream& in_;
  std::string line_;
  long number_ = 0;
};

}  // namespace

bool Formula::satisfied_by(const std::vector<signed char>& model) const {
  bool clause = false;
  for (const int literal : literals) {
    if (literal == 0) {
      if (!clause) return false;
      clause = false;
    } else {
      clause = clause || (literal > 0 ? model[static_cast<std::size_t>(literal)] > 0
                                      : model[static_cast<std::size_t>(-literal)] < 0);
    }
  }
  return true;
}

Formula read_formula(std::istream& in) {
  Reader reader(in);
  Formula formula;
  long variables = 0, promised = -1;
  if (!reader.next()) reader.wrong("there is no header 'p cnf VARIABLES CLAUSES'");
  std::istringstream header(reader.line());
  std::string p, form, more;
  header >> p >> form;
  const bool incremental = form == "inccnf";
  if (p != "p" || (form != "cnf" && !incremental))
    reader.wrong("'p cnf VARIABLES CLAUSES' or 'p inccnf' was expected");
  if (!incremental && (!(header >> variables >> promised) || variables < 0 || promised < 0))
    reader.wrong("the header needs two numbers: variables and clauses");
  if (variables > kMostVariables) reader.wrong("it has more than " + std::to_string(kMostVariables) + " variables");
  if (header >> more) reader.wrong("'" + more + "' behind the header");
  formula.variables = static_cast<int>(incremental ? kMostVariables : variables);
  while (reader.next()) {
    if (reader.is_cube())
      reader.cube(formula.cubes, formula.variables);
    else
      reader.numbers(0, formula.literals, formula.variables);
  }
  if (!formula.literals.empty() && formula.literals.back() != 0) reader.wrong("the last clause does not end with 0");
  int most = 0;
  for (const int literal : formula.literals) {
    formula.clauses += literal == 0 ? 1 : 0;
    most = std::max(most, std::abs(literal));
  }
  if (!incremental && formula.clauses != static_cast<std::size_t>(promised))
    reader.wrong("the header promises " + std::to_string(promised) + " clauses, and " +
                 std::to_string(formula.clauses) + " came");
  if (incremental) {
    for (const Literals& cube : formula.cubes)
      for (const int literal : cube) most = std::max(most, std::abs(literal));
    formula.variables = most;
  }
  return formula;
}

std::vector<Literals> read_cubes(std::istream& in, int variables) {
  Reader reader(in);
  std::vector<Literals> cubes;
  while (reader.next()) {
    if (!reader.is_cube()) reader.wrong("a cube begins with 'a'");
    reader.cube(cubes, variables);
  }
  return cubes;
}

}  // namespace cubes
