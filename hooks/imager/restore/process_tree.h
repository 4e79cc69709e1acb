// Making the members' processes with their recorded pids, in their recorded sessions and process groups.
#pragma once

#include <sys/types.h>

#include <functional>
#include <vector>

#include "hooks/imager/descriptors.h"
#include "shadowib/base/status.h"

namespace shadowib {

struct PlacedProcess {
  pid_t pid, group, session;  // as recorded
  std::function<void()> run;  // in the process, once it is placed; does not return
  int terminal_fd = -1;       // leads to its controlling terminal; -1: it has none
  pid_t foreground = 0;       // the group that is in the foreground there
  pid_t parent = 0;           // which of the others makes it; 0: the caller
  std::vector<EndedChild> ended = {};
};

// Called by pid 1 of the namespace, with all signals blocked; all processes become its children, but for those that
// have a parent among them. The leader of a session is made by its parent, too, and makes the processes of the
// session. A process of it without a parent among `processes` is only possible if the leader has none either
// (judge_families). Children that had ended end again, and can be waited for by their parents when these run. Returns
// when each is where it belongs, or tells which one cannot be and why; then the caller has to end, and the namespace
// with it. A session or group whose leader is not among `processes` gets a stand-in with the leader's number, which
// ends when `hold_fd` (the reading end of a pipe whose writing end only the caller keeps) reaches its end; but with
// the namespace if it leads a session with a controlling terminal, which its end would hang up. A session or group
// outside the namespace (0) or of its first process becomes the caller's.
Status place_processes(const std::vector<PlacedProcess>& processes, int hold_fd, int hold_write_fd);

// Makes a thread of the calling process with each of these numbers. They sleep without a stack until the process
// ends. For a trial: with all signals blocked, in a process that does nothing else any more. Tells the first number
// that cannot be had.
Status take_numbers(const std::vector<pid_t>& numbers);

}  // namespace shadowib
