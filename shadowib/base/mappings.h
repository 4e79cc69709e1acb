// The mappings of this process, read where neither stdio nor the heap may be used: a stopped thread may hold their
// locks.
#pragma once

#include <cstdint>

namespace shadowib {

struct Mapping {
  std::uint64_t start, end;
  bool readable, writable, executable;
  std::uint64_t offset, inode;  // of its file; of a System V segment the inode is the id
  const char* name;             // of its file, or "[vdso]" and the like, or ""; until the visitor returns
};

// Calls visit(mapping, arg) for each line of /proc/self/maps, by ascending address, until it returns false. 0 or the
// errno of reading.
int visit_mappings(bool (*visit)(const Mapping& mapping, void* arg), void* arg);

// Takes a function object instead: bool(const Mapping&).
template <typename Visitor>
int for_each_mapping(Visitor visitor) {
  return visit_mappings([](const Mapping& mapping, void* arg) { return (*static_cast<Visitor*>(arg))(mapping); },
                        &visitor);
}

}  // namespace shadowib
