// Supersteps against peers that answer at once, for callgrind: counts the library's own instructions.
//
//   bsp_steps PROCESSES SUPERSTEPS [MESSAGES]     empty ones, or with so many of 8 bytes to each other process
// The verbs are made up. Their functions are named fake_*, so that perftest/bsp can leave them out. `step` is the
// function that is counted.
#include <cstdio>
#include <cstdlib>

#include "libraries/bsp/fake_verbs.h"
#include "libraries/bsp/superstep.h"

using shadowib::bsp::Mesh;
using shadowib::bsp::Supersteps;

extern "C" {
// Counted.
__attribute__((noinline, used)) void step(Supersteps* supersteps, int messages, std::uint64_t payload) {
  for (int i = 0; i < messages; ++i)
    for (int to = 1; to < fake_processes; ++to) supersteps->send("send", to, nullptr, &payload, sizeof(payload));
  supersteps->sync(false);
}
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  fake_processes = std::atoi(argv[1]);
  const int supersteps = std::atoi(argv[2]), messages = argc > 3 ? std::atoi(argv[3]) : 0;
  fake_completions.reserve(4096);
  Mesh mesh(0, fake_processes, kFakeEpoch, 1000);
  mesh.connect();
  Supersteps all(0, fake_processes, &mesh);
  for (int i = 0; i < supersteps; ++i) step(&all, messages, static_cast<std::uint64_t>(i));
  return 0;
}
