// Shares of a job on other hosts: one bsprun there for each, started by $SHADOWIB_RSH (ssh).
#pragma once

#include "libraries/bsp/run/plan.h"

namespace shadowib::bsprun {

// Runs all shares to their end. Passes on their output. `signals`: Stop::signals. *host is where the outcome
// happened.
Outcome run_on_hosts(const Options& options, const std::vector<Share>& shares, int signals, std::string* host);

// The other side: runs this host's share, and tells the outcome on standard output as its last words. End of file on
// standard input ends the processes. Returns the exit code.
int run_share(Options options, int signals);

}  // namespace shadowib::bsprun
