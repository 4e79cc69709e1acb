// Whether a seccomp filter of the place lets a checkpoint make its system calls.
#pragma once

#include "shadowib/base/status.h"

namespace shadowib {

// Does nothing where the process was started without a filter. Otherwise has the command `shadowib` make the calls,
// once: kRefused names the first that the filter answers by ending the process. Threads run.
Status probe_filter();

// In a restarted process, whose place is another.
void forget_filter_probe();

}  // namespace shadowib
