// Which members of a set one command has to restart, on one machine.
#pragma once

#include "hooks/imager/bonds.h"
#include "hooks/imager/restore/members.h"

namespace shadowib {

// All there are: of memory, descriptors, process groups, parents and children.
Status find_bonds(const OpenedSet& set, const BondSink& sink);

}  // namespace shadowib
