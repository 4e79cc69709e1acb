// Process groups and families of a set of which a part only is restarted here.
#pragma once

#include "hooks/imager/bonds.h"
#include "hooks/imager/restore/members.h"

namespace shadowib {

// Bonds of members of a process group that the program made (its leader is a member too), since a signal to the group
// would no longer reach all of them. Also bonds of parents and children. A group of whoever has started the job, its
// shell's or launcher's, may be parted: each part of the restart has one of that number. So may one of ranks alone,
// whichever leads it: srun puts a step's tasks of a host into one.
Status find_process_bonds(const OpenedSet& set, const BondSink& sink);
// kRefused: one of those bonds, or by the offset of a file that is written to, is between a member here and one
// elsewhere.
Status judge_parted(const OpenedSet& set);

}  // namespace shadowib
