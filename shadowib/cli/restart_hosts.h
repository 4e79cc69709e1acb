// A restart whose members are started on several hosts by one command: `restart --hosts LIST`.
//
// On each host runs a `restart --members`, started by a remote shell. It is held by a pipe to its standard input:
// when the pipe ends, with this command or with the connection, it ends with all its processes. SIGTERM, SIGUSR1 and
// SIGUSR2 of this command go through it to the members.
#pragma once

#include <string>
#include <vector>

#include "shadowib/cli/common.h"
#include "shadowib/cli/host_shares.h"

namespace shadowib::cli {

// A host was lost before the job's end (shadowib-restart(1)).
inline constexpr int kLostHost = 21;

// Until all shares have ended. `words`: the command there, without its members. Returns 0, kRestartedProcessFailed if
// a process failed, kLostHost, or the code of a share that was refused. After these two the other shares are ended.
// A lost host is in the history (host_lost). `lease_s`: shares get a beat four times in it; 0: none.
int run_shares(const Common& common, const std::string& job, const std::vector<HostShare>& shares,
               const std::string& shell, const std::vector<std::string>& words, double lease_s);

// The other side: goes on as a child of the present process, which waits for its end and for that of standard input.
// Returns in that child alone. `lease_s`: the child is ended, too, if no beat has come for so long, by a clock that
// runs on while the host sleeps (CLOCK_BOOTTIME); 0: it is not.
void hold_by_input(double lease_s);

}  // namespace shadowib::cli
