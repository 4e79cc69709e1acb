// This host's name and its processes, for commands. Uses the heap.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shadowib {

// As gethostname(2) has it: records of members and locks name hosts by it.
std::string host_name();

struct ProcessStat {
  char state = 0;  // 'R', 'S', 'D', 'T', 'Z', ...; 0: there is no such process
  pid_t parent = 0;
  std::uint64_t start_time = 0;  // in clock ticks since boot: with the pid it names a process for good

  bool exists() const { return state != 0 && state != 'Z' && state != 'X'; }  // a zombie has ended
};

// Source: proc(5), /proc/PID/stat, fields 3, 4 and 22.
ProcessStat process_stat(pid_t pid);
ProcessStat parse_process_stat(const std::string& text);

// The start time of a process that exists; 0: none does.
inline std::uint64_t process_start_time(pid_t pid) {
  const ProcessStat stat = process_stat(pid);
  return stat.exists() ? stat.start_time : 0;
}

// Closes all descriptors of this process but these. Also where there is no close_range(2), which came with Linux 5.9.
void close_all_but(std::vector<int> kept);

}  // namespace shadowib
