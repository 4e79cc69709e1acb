// This process's part in a BSP job: its number, bsp_init() to bsp_end(), and how it leaves.
#pragma once

#include "libraries/bsp/superstep.h"

namespace shadowib::bsp {

// The supersteps, between bsp_begin() and bsp_end(). `call` is the function that the program called: outside of the
// parallel part the job ends with a message.
extern Supersteps* supersteps;
[[noreturn]] void outside(const char* call);
inline Supersteps& inside(const char* call) {
  if (supersteps == nullptr) [[unlikely]]
    outside(call);
  return *supersteps;
}

void init(void (*spmd)());
void begin(long processes);
void end();
// Ends the superstep, with a checkpoint if one is due.
void end_superstep();

int process_number();
int process_count();
double seconds_since_begin();

}  // namespace shadowib::bsp
