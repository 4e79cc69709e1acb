// Whether a seccomp filter of the place lets a checkpoint make its system calls.
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// Does nothing where the process was started without a filter. Otherwise has the command `shadowib` make the calls,
// until all of them are allowed once. Threads run. kRefused names the first call that the filter answers by ending
// the process. kRefused with EAGAIN: the command was held up for `patience_ms`, or ended by something else. kRefused
// or kIo: the command cannot be started.
Status probe_filter(int patience_ms = 10000);

// In a restarted process, whose place is another.
void forget_filter_probe();

}  // namespace shadowib
