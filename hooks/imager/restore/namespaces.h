// The namespaces a restarted set lives in.
#pragma once

#include <cstdint>

#include "shadowib/base/status.h"

namespace shadowib {

// In the effective set of this process: CAP_*.
bool has_capability(int capability);

struct ClockFloor {
  std::int64_t monotonic_ns, boottime_ns;  // no clock may show less than this
};

// In a process of its own: makes a user namespace if this process may not make the others without, and prepares a
// pid, a mount and (if a clock would run back) a time namespace, which the next child enters; for `system_v` memory
// an IPC namespace too, in which its ids are free. kPermission names call and remedy.
Status enter_namespaces(const ClockFloor& floor, bool system_v = false);

// In that child, pid 1: private mounts and a /proc of its own.
Status mount_proc();

// A /dev/pts of the processes' own, in which every number is free. A warning line, if there cannot be one.
void mount_terminals();

}  // namespace shadowib
