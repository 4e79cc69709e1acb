// Descriptors that refer to a thread. Restored last, when the threads exist.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "hooks/imager/descriptors/table.h"

namespace shadowib::descriptors {

// Keeps, for finish_descriptors() in the restored process, what of the table waits for threads. No program heap.
void note_late(const Table& table);

// Keeps the record locks among these, by descriptor, for hold_record_locks(). No program heap.
void note_record_locks(const std::map<int, std::vector<FileLock>>& locks);
void forget_record_locks();

// The process or thread that is signalled for a descriptor (F_SETOWN_EX); `pid` 0: none. A failure is only worth a
// warning.
void set_signal_owner(int fd, std::int32_t type, std::int32_t pid);

}  // namespace shadowib::descriptors
