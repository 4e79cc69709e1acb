// Variables of the environment by which bsprun tells each process its place.
#pragma once

#include <cstdint>

namespace shadowib::bsp {

struct Environment {
  int process = 0, processes = 1;
  int here = 1;             // processes on this host
  std::uint64_t epoch = 0;  // of the run: a number that no other run of the job has
  double interval_s = 0;    // of checkpoints at the end of supersteps; 0: none
  bool is_started = false;  // by bsprun
};

// SHADOWIB_BSP_PROCESS, _PROCESSES, _HERE, _EPOCH, _INTERVAL. Ends the process with a message if one is wrong.
Environment read_environment();

// Polls that find nothing before a process sleeps: none where more processes than processors would spin.
int spins_for(int processes_here, int processors);

}  // namespace shadowib::bsp
