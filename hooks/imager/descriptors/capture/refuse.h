// The words by which the capture refuses a descriptor or a piece of shared memory. No program heap.
#pragma once

#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// kRefused: "descriptor 5 (inotify) of pid 77 cannot be checkpointed: WHY". `error`: EAGAIN if it may be another
// matter in a moment, which the command then waits for.
Status refuse(int fd, const char* type, const char* why, int error = 0);
// Likewise for shared memory of this process.
Status refuse_segment(const Segment& segment, const char* why, int error = 0);

// Likewise for a child process. Runs in commands, too.
Status refuse_child(const Table& parent, const Child& child, const char* why, int error = 0);

}  // namespace shadowib::descriptors
