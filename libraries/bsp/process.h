// This process's part in a BSP job: its number, bsp_init() to bsp_end(), and how it leaves.
#pragma once

#include "libraries/bsp/portable.h"
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

// For programs with portable images.
bool is_other();  // not process 0, before bsp_begin()
// bsp_begin() of a process that has come from an image.
void begin_again(const shadowib_bsp_kept& kept);
[[noreturn]] void refuse(const char* format, ...) __attribute__((format(printf, 1, 2)));
// portable.cc: a command waits for the job; whether the sync that has ended is to save.
bool ask_to_save();
void note_due(bool due);

int process_number();
int process_count();
double seconds_since_begin();

}  // namespace shadowib::bsp
