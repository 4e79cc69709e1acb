// Options of shadowib-storm.
#pragma once

#include <cstdint>
#include <string>

#include "storm/plan.h"
#include "storm/sabotage.h"

namespace storm {

struct Options {
  std::uint64_t seed = 0;  // 0: chosen, printed
  int processes = 3;
  int rank = -1;       // < 0: start all of them and wait
  std::string area;    // the files by which they find each other and are told to stop; "": a temporary directory
  double seconds = 0;  // 0: until AREA/stop appears
  int workers = 2;     // threads of each process that drive connections
  int patience = 60;   // seconds without progress that are a hang
  std::string device;  // first one if empty
  Sabotage sabotage = Sabotage::kNone;
  Variety variety;  // the same in all processes
  bool json = false;
};

// Parses argv; prints help or a complaint and returns false with *exit_code set if the program is to end.
bool parse_options(int argc, char** argv, Options* options, int* exit_code);

}  // namespace storm
