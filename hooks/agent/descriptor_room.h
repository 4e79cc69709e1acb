// Descriptor numbers for a checkpoint of a process that has none left below its RLIMIT_NOFILE.
//
// Called by the agent thread alone. Its notes lie in memory that the image holds, so a restarted process goes on with
// them.
#pragma once

#include <sys/resource.h>

#include "shadowib/base/status.h"

namespace shadowib {

// Numbers that a checkpoint opens at the same time, at most.
inline constexpr int kRoomForCheckpoint = 64;

// Raises RLIMIT_NOFILE if fewer than kRoomForCheckpoint numbers below it are free: the soft limit up to the hard one,
// and the hard one with CAP_SYS_RESOURCE. Does nothing otherwise. kRefused with the numbers if there is no room then.
Status make_descriptor_room();

// Sets the limit that the program had. Does nothing if make_descriptor_room has changed none.
void give_back_descriptor_room();

// True between the two if the limit is changed; *program is the program's own.
bool has_descriptor_room(rlimit* program);

}  // namespace shadowib
