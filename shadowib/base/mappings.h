// The mappings of a process, read where neither stdio nor the heap may be used: a stopped thread may hold their
// locks.
#pragma once

#include <cstdint>

namespace shadowib {

struct Mapping {
  std::uint64_t start, end;
  bool readable, writable, executable;
  bool shared;                          // by MAP_SHARED
  std::uint64_t offset, device, inode;  // of its file; of a System V segment the inode is the id
  const char* name;                     // of its file, or "[vdso]" and the like, or ""; until the visitor returns
};

// A kernel that filters by itself (PROCMAP_QUERY, Linux 6.11) tells of a few in a hundredth of the time.
enum class MappingsOf { kAll, kExecutable, kShared };
inline constexpr char kOwnMaps[] = "/proc/self/maps";

// Calls visit(mapping, arg) for each mapping of that kind in a maps file, by ascending address, until it returns
// false. 0 or the errno of reading.
int visit_mappings(MappingsOf kind, const char* maps, bool (*visit)(const Mapping& mapping, void* arg), void* arg);

// Takes a function object instead: bool(const Mapping&).
template <typename Visitor>
int for_each_mapping(MappingsOf kind, const char* maps, Visitor visitor) {
  return visit_mappings(
      kind, maps, [](const Mapping& mapping, void* arg) { return (*static_cast<Visitor*>(arg))(mapping); }, &visitor);
}
template <typename Visitor>
int for_each_mapping(Visitor visitor) {
  return for_each_mapping(MappingsOf::kAll, kOwnMaps, visitor);
}

}  // namespace shadowib
