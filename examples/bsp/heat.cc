// Heat in a rod, by explicit steps: each process has a part, and shows its ends to its neighbours.
//
//   bsprun -n P heat [CELLS [STEPS]]     checks itself against one process's computation, and prints the middle
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <shadowib/bsp.hpp>
#include <vector>

namespace {

double start(std::size_t cell, std::size_t cells) {
  return std::sin(3.14159265358979 * static_cast<double>(cell) / static_cast<double>(cells));
}

double next(double left, double middle, double right) { return middle + 0.25 * (left - 2 * middle + right); }

// The whole rod, by one process.
std::vector<double> reference(std::size_t cells, int steps) {
  std::vector<double> now(cells + 2, 0), then(cells + 2, 0);
  for (std::size_t i = 0; i < cells; ++i) now[i + 1] = start(i, cells);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 1; i <= cells; ++i) then[i] = next(now[i - 1], now[i], now[i + 1]);
    then[0] = then[cells + 1] = 0;
    now.swap(then);
  }
  return now;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t cells = argc > 1 ? std::strtoul(argv[1], nullptr, 0) : 1000;
  const int steps = argc > 2 ? std::atoi(argv[2]) : 500;
  bsp::World world;
  const std::size_t p = world.nprocs(), s = world.pid();
  const std::size_t first = cells * s / p, mine = cells * (s + 1) / p - first;
  bsp::Array<double> halo(world, 2, 0.0);  // the neighbours' ends: left, right
  std::vector<double> now(mine + 2, 0), then(mine + 2, 0);
  for (std::size_t i = 0; i < mine; ++i) now[i + 1] = start(first + i, cells);
  world.sync();
  for (int step = 0; step < steps; ++step) {
    if (s > 0) halo.put(static_cast<unsigned>(s - 1), 1, now[1]);
    if (s + 1 < p) halo.put(static_cast<unsigned>(s + 1), 0, now[mine]);
    world.sync();
    now[0] = halo[0];
    now[mine + 1] = halo[1];
    for (std::size_t i = 1; i <= mine; ++i) then[i] = next(now[i - 1], now[i], now[i + 1]);
    now.swap(then);
  }
  const std::vector<double> expected = reference(cells, steps);
  for (std::size_t i = 0; i < mine; ++i)
    if (now[i + 1] != expected[first + i + 1])
      world.abort("cell %zu is %.17g instead of %.17g", first + i, now[i + 1], expected[first + i + 1]);
  if (s == 0)
    std::printf("heat: %zu cells, %d steps: right, %.6f in the middle\n", cells, steps, expected[cells / 2]);
}
