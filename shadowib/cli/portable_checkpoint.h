// A checkpoint of a job of portable programs: each process saves at its next site, and the images become a set.
#pragma once

#include <functional>
#include <string>

#include "hooks/command/coordinator.h"

namespace shadowib::cli {

struct PortableCheckpoint {
  std::string directory, job;
  bool kill = false;  // processes end once the set is committed
  int timeout_ms = 60000;
  // Called once the set is committed, before processes are told to end.
  std::function<void(const CheckpointReport&)> committed;
  // With `kill`: called behind it, right before they are told. SIGINT, SIGTERM and SIGHUP wait until they are.
  std::function<void(const CheckpointReport&)> at_kill;
};

// On failure nothing is committed, and the processes go on.
//   `kNotFound`: no process of the job is alive.   `kBusy`: another checkpoint, or not all have begun.
//   `kRefused`: a process cannot be saved at its site; the text says why.   `kAborted`: a process has ended.
//   `kTimeout`: not all have come to a site in time.   `kIo`: the directory fails.
Status save_portable(const PortableCheckpoint& options, CheckpointReport* report);

}  // namespace shadowib::cli
