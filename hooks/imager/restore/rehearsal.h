// The obstacles that a restart of a set would meet on this machine, found out without starting anything of it.
//
// The checks are those of a restart, each made to its end, where the restart stops at the first that fails; and some
// that the restart leaves to the kernel, which would say no in the middle of it. The backend's answer at its loading
// is not rehearsed.
#pragma once

#include <string>
#include <vector>

#include "hooks/imager/restore/members.h"

namespace shadowib {

struct RehearsedStep {
  enum Outcome { kReady, kLimited, kRefused } outcome;
  const char* what;
  std::string text;
  Code code = Code::kOk;  // of the first obstacle, as the restart itself would fail with
};

// Limits of this machine that the memory and descriptors of a set have to fit into.
struct MachineLimits {
  std::uint64_t map_count;        // vm.max_map_count
  std::uint64_t lowest_address;   // vm.mmap_min_addr, 0 for who may map below it
  std::uint64_t highest_address;  // where a process's addresses end
  std::uint64_t locked_bytes;     // the hard RLIMIT_MEMLOCK, or the largest number if the restart has CAP_IPC_LOCK
  std::uint64_t descriptors;      // the hard RLIMIT_NOFILE, to which a restart raises the soft one
  std::uint64_t available_bytes;  // memory and swap space that are free
  bool guard_pages;               // the kernel has MADV_GUARD_INSTALL (Linux 6.13)
  std::uint64_t address_bytes = ~0ull;  // the hard RLIMIT_AS
  std::uint64_t data_bytes = ~0ull;     // the hard RLIMIT_DATA
  bool seals = true;                    // the kernel has mseal (Linux 6.10)
  bool droppable = true;                // the kernel has MAP_DROPPABLE (Linux 6.11)
};
MachineLimits machine_limits();

// Rehearses for the members of an opened set that are to be restarted here. Single-threaded callers only: it forks
// children that enter namespaces.
std::vector<RehearsedStep> rehearse_restart(const OpenedSet& set, const MachineLimits& limits);

// Whether members of the set still live. They hold ports, locks and memory, which are free once they have ended.
enum class Holders { kNone, kMembers };
// The first of those that is refused, as "WHAT: text" with its code; ok if none is. With Holders::kMembers: of what
// does not depend on other processes.
Status refusal_of_restart(const OpenedSet& set, const MachineLimits& limits, Holders holders = Holders::kNone);

}  // namespace shadowib
