// Process groups and families of a set of which a part only is restarted here.
#pragma once

#include "hooks/imager/restore/members.h"

namespace shadowib {

// kRefused names a member whose group was made by the program (its leader is a member too) and of which others are
// restarted elsewhere: a signal to the group would no longer reach them; or a member whose parent or child is. A
// group of whoever has started the job, its shell's or launcher's, may be parted: each part of the restart has one of
// that number. So may one of ranks alone, whichever leads it: srun puts a step's tasks of a host into one.
Status judge_process_groups(const OpenedSet& set);

}  // namespace shadowib
