// The first process of a restarted set's pid namespace.
#pragma once

#include <vector>

#include "hooks/imager/restart.h"
#include "hooks/imager/restore/members.h"
#include "hooks/imager/restore/page_stream.h"
#include "hooks/imager/restore/shared_memory.h"

namespace shadowib {

// Between supervisor and command, on a SOCK_SEQPACKET socket.
struct SupervisorMessage {
  // kLeft: it has ended, and is its parent's, a member, to wait for.
  // kChecked: all members have their memory, and wait for the command's word.
  enum Kind : std::uint32_t { kStatus = 1, kRunning = 2, kExited = 3, kLeft = 4, kChecked = 5 } kind;
  std::uint32_t member;
  std::int32_t value;  // wait status
  Status status;
};

struct ForwardedSignal {
  std::int32_t signal;     // 0: the job has begun, members may run
  std::int32_t to_groups;  // to the members' process groups, not to the members alone
};

// Restores the part's members, then reaps and forwards signals that come as ForwardedSignal, until the last one has
// ended or the command is gone. `memory` is what the command has made. Returns the process's exit code.
int supervise(const OpenedSet& set, const RestartPart& part, const RestartOptions& options, SharedMemoryPlan* memory,
              PageStreams* streams, int command_fd);

}  // namespace shadowib
