// What of a member's descriptors leads to its threads: it can be made again only once the process has them.
#pragma once

#include <cstdint>

#include "hooks/imager/descriptors/table.h"

namespace shadowib::descriptors {

// Keeps, for finish_descriptors() in the restored process, what of the table waits for threads. No program heap.
void note_late(const Table& table);

// Who is signalled for a descriptor (F_SETOWN_EX); `pid` 0: nobody. A failure is only worth a warning.
void set_signal_owner(int fd, std::int32_t type, std::int32_t pid);

}  // namespace shadowib::descriptors
