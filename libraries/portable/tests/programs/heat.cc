// Heat in a rod and a plate by classes: grids of vectors, a virtual scheme, a lambda as the boundary.
#include <shadowib/portable.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

class Grid {
 public:
  Grid(std::size_t rows, std::size_t columns) : columns_(columns), cells_(rows * columns) {}
  double& at(std::size_t row, std::size_t column) { return cells_[row * columns_ + column]; }
  double at(std::size_t row, std::size_t column) const { return cells_[row * columns_ + column]; }
  std::size_t rows() const { return cells_.size() / columns_; }
  std::size_t columns() const { return columns_; }
  double sum() const {
    double all = 0;
    for (double cell : cells_) all += cell;
    return all;
  }

 private:
  std::size_t columns_;
  std::vector<double> cells_;
};

class Scheme {
 public:
  explicit Scheme(std::string name) : name_(std::move(name)) {}
  virtual ~Scheme() = default;
  virtual double step(Grid& grid) = 0;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

class Jacobi : public Scheme {
 public:
  Jacobi() : Scheme("the scheme of Jacobi, explicit") {}
  double step(Grid& grid) override {
    Grid next = grid;
    double change = 0;
    for (std::size_t i = 1; i + 1 < grid.rows(); i++) {
      for (std::size_t j = 1; j + 1 < grid.columns(); j++) {
        next.at(i, j) = (grid.at(i - 1, j) + grid.at(i + 1, j) + grid.at(i, j - 1) + grid.at(i, j + 1)) / 4;
        change = std::fmax(change, std::fabs(next.at(i, j) - grid.at(i, j)));
      }
      if (i == grid.rows() / 2) shadowib_portable_site();
    }
    grid = std::move(next);
    return change;
  }
};

class Seidel : public Scheme {
 public:
  Seidel() : Scheme("Seidel") {}
  double step(Grid& grid) override {
    double change = 0;
    for (std::size_t i = 1; i + 1 < grid.rows(); i++) {
      for (std::size_t j = 1; j + 1 < grid.columns(); j++) {
        const double old = grid.at(i, j);
        grid.at(i, j) = (grid.at(i - 1, j) + grid.at(i + 1, j) + grid.at(i, j - 1) + grid.at(i, j + 1)) / 4;
        change = std::fmax(change, std::fabs(grid.at(i, j) - old));
      }
    }
    shadowib_portable_site();
    return change;
  }
};

template <typename Boundary>
int solve(Grid& grid, Scheme& scheme, Boundary&& boundary) {
  for (std::size_t j = 0; j < grid.columns(); j++) grid.at(0, j) = boundary(j);
  int steps = 0;
  while (steps < 12 && scheme.step(grid) > 1e-3) steps++;
  shadowib_portable_site();
  return steps;
}

}  // namespace

int main() {
  std::vector<std::unique_ptr<Scheme>> schemes;
  schemes.push_back(std::make_unique<Jacobi>());
  schemes.push_back(std::make_unique<Seidel>());
  std::vector<std::string> lines;
  double hot = 100;
  for (auto& scheme : schemes) {
    Grid grid(14, 11);
    const int steps = solve(grid, *scheme, [&hot](std::size_t j) { return hot -= static_cast<double>(j) / 8; });
    lines.push_back(scheme->name() + " " + std::to_string(steps) + " " + std::to_string(grid.sum()));
    shadowib_portable_site();
  }
  for (const std::string& line : lines) std::puts(line.c_str());
  return 0;
}
