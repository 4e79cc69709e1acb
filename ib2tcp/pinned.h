// Registered memory that its owner unmaps or protects after the registration.
//
// An adapter ignores page protections, and writes to the old pages of memory that was unmapped. We cannot pin pages.
// The program tells of its changes (BackendOps::memory_changes), and a region with changed memory takes another way:
//   protected memory  read and written through /proc/self/mem, which ignores protections as an adapter does;
//   gone memory       an error, even if something else lies there now: remote access for a peer, local protection for
//                     the owner. The owner lives.
// Regions without changes pay nothing: translate() fails for the others, and its callers then ask find_carefully().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>

#include "shadowib/base/memory_watch.h"

struct ibv_pd;

namespace shadowib::ib2tcp {

struct Mr;
class Qp;

// The changed parts of one region, by address. Under the engine's lock.
class ChangedMemory {
 public:
  // Memory that has gone stays so, whatever lies there later: also if a later call that would unmap it fails.
  void change(std::uintptr_t begin, std::uintptr_t end, MemoryChange change);
  bool empty() const { return parts_.empty(); }
  // Whether any byte of [begin, end) has changed; whether one is gone.
  bool touches(std::uintptr_t begin, std::uintptr_t end) const;
  bool has_gone(std::uintptr_t begin, std::uintptr_t end) const;

 private:
  enum class State : std::uint8_t {
    kPlain,
    kCareful,
    kGoing,
    kGone
  };  // kPlain: no part; kGoing: until the call is over
  struct Part {
    std::uintptr_t end;
    State state;
  };
  using Parts = std::map<std::uintptr_t, Part>;  // by beginning; disjoint
  Parts::const_iterator first_at(std::uintptr_t begin) const;
  static State after(State state, MemoryChange change);
  void cut(std::uintptr_t begin, std::uintptr_t end);
  void set(std::uintptr_t begin, std::uintptr_t end, State state);

  Parts parts_;
};

// Tells without a lock that memory is far from every region: most calls of munmap concern none.
class RegionFilter {
 public:
  void add(const void* address, std::size_t bytes) { count(address, bytes, 1); }
  void remove(const void* address, std::size_t bytes) { count(address, bytes, -1); }
  bool may_touch(const void* address, std::size_t bytes) const;

 private:
  static constexpr unsigned kGranuleBits = 21;
  static constexpr std::size_t kSlots = 4096;
  void count(const void* address, std::size_t bytes, std::int32_t step);
  std::array<std::atomic<std::int32_t>, kSlots> counts_{};
};
extern RegionFilter g_regions;

// Memory of a region, as an access may reach it.
struct Reach {
  void* memory;  // nullptr: not at all
  bool careful;  // only by read_carefully and write_carefully
};
// As translate() in memory.h and translate_remote() in memory_window.h, for all regions.
Reach find_carefully(const ibv_pd* pd, std::uint32_t key, std::uint64_t address, std::uint64_t bytes, int access);
Reach find_remote_carefully(const Qp& qp, const ibv_pd* pd, std::uint32_t key, std::uint64_t address,
                            std::uint64_t bytes, int access);
// Which way leads to memory of `mr`.
Reach reach(const Mr& mr, void* memory, std::uint64_t bytes);

// Copy from and to the program's memory by the kernel. False: some of it is not there.
[[nodiscard]] bool read_carefully(void* to, const void* memory, std::size_t bytes);
[[nodiscard]] bool write_carefully(void* memory, const void* from, std::size_t bytes);

// The parts of a new region that were protected before, where the kernel tells cheaply (Linux 6.11).
void note_protections(Mr& mr);

// Slot of BackendOps.
void memory_changes(const void* address, std::size_t bytes, MemoryChange change);

}  // namespace shadowib::ib2tcp
