// The process's mappings as the image will list them.
#pragma once

#include "hooks/imager/image_format.h"
#include "hooks/imager/save/scratch.h"
#include "hooks/imager/shared_memory.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Arrays lie in the scratch. `strings` holds the paths one behind the other.
struct MappingTable {
  const std::uint64_t* stored_count;  // stands directly before the array, as in the image
  MappingRecord* mappings;
  std::uint32_t count;
  const char* strings;
  std::uint32_t string_bytes;
  VdsoRecord* vdso;            // without content
  std::uint32_t locks_future;  // MCL_FUTURE and MCL_ONFAULT, as the process has asked for by mlockall
};

// Mappings of shared memory are looked up in this list. Without a list (`list` null) they are only judged.
struct SharedList {
  const SharedMemory* list;
  std::uint32_t count;
};

// Reads /proc/self/smaps. Owned mappings (base/descriptors.h), the scratch itself and [vsyscall] are cut out.
// kRefused names the first mapping that cannot be captured.
Status read_mappings(Scratch* scratch, const SharedList& shared, MappingTable* table);

// The mappings as the inspection sees them; shared memory is only judged. The table is kept until
// forget_inspection().
Status inspect_mappings(const MappingTable** table);
// As read_mappings(), for a program that has stood still since the inspection: what smaps tells of the mappings, at
// ten times the cost of maps, is taken from there.
Status read_inspected_mappings(Scratch* scratch, const SharedList& shared, MappingTable* table);
// `unmap` is false in a restarted process, which does not have the table.
void forget_inspection(bool unmap);

}  // namespace shadowib
