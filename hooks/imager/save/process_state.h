// The process's own attributes, as records.
#pragma once

#include "hooks/imager/image_format.h"
#include "hooks/imager/save/scratch.h"
#include "shadowib/base/status.h"

namespace shadowib {

struct ProcessState {
  ProcessRecord process;
  SignalAction actions[64];
  char strings[3 * 4096 + 256];
  std::uint32_t string_bytes;
  char command_line[16 << 10];
  std::uint32_t command_line_bytes;
  std::uint8_t pending[64][128];
  std::uint32_t pending_count;
  TimerRecord timers[64];
  std::uint32_t timer_count;
};

// Reads everything but threads and memory. `state` is zeroed. Signals pending for the process are taken out and put
// back.
Status read_process_state(ProcessState* state);

// Reads state that belongs to the process's memory as a whole, and the nice value of its autogroup.
void read_memory_state(ProcessRecord* process);

// Registrations for membarrier(2), as MEMBARRIER_CMD_GET_REGISTRATIONS gives them. A kernel before 6.3 does not tell
// them (`kernel_tells` false, for tests as well). Then each is tried, and one that no trial shows is taken for made.
std::uint32_t read_memory_barriers(bool kernel_tells = true);

// POSIX timers of the process. kRefused if there are more than `capacity` or the kernel does not list them.
Status read_timers(TimerRecord* timers, std::uint32_t capacity, std::uint32_t* count);

}  // namespace shadowib
