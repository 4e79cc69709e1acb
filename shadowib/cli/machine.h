// The offers of this machine, found out by looking and by trying in child processes. Used by `shadowib doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/store/store_spec.h"

namespace shadowib::cli {

enum class Verdict {
  kOk,
  kNote,     // works, with a limit
  kMissing,  // something the machine should offer
  kRefused,  // a set, a program or a store that shadowib would not take as things are
};

struct Finding {
  std::string what;
  Verdict verdict;
  std::string detail;
  std::string remedy;  // empty if there is nothing to do
};
using Findings = std::vector<Finding>;

// Where the kernel's files are. Tests put directories of their own in their place.
struct Places {
  std::string sys = "/sys", dev = "/dev", proc = "/proc";
};

// The first line of a file, "" if it cannot be read.
std::string first_line(const std::string& path);

// Namespaces, pids of choice, process memory layout, clocks, the vdso: what a restart needs.
Findings examine_restart();

// Adapters and their ports, the device nodes of verbs and rdma_cm, locked memory, descriptors.
Findings examine_devices(const Places& places);
// The parts of it that depend on limits. `lock_privilege`: CAP_IPC_LOCK in the first user namespace.
Finding judge_locked_memory(unsigned long long limit, bool adapter, bool lock_privilege);
Finding judge_descriptors(unsigned long long soft, unsigned long long hard);

// The carriers of the emulated adapter: shared memory, TCP, libfabric. `transport` is SHADOWIB_IB2TCP_TRANSPORT.
Findings examine_transports(const std::string& transport);

// Which backend a set would go on over. `recorded` and `wanted` are backends by name ("auto", "verbs", "ib2tcp"),
// `adapter` whether the machine has one, and `library` the emulated adapter's library where the restarted members
// will look for it.
Finding judge_backend(const std::string& recorded, const std::string& wanted, bool adapter,
                      const std::string& library);

// Kernel, C library, processor, the kernel calls a checkpoint makes, limits of memory, and what programs that are
// started from here would inherit and no checkpoint can capture.
Findings examine_kernel(const Places& places);
// A kernel call or file that was tried. `without` says what does not work without it; a required one is missing then.
struct Trial {
  const char* name;
  int error;  // 0: works
  bool required;
  const char* without;
  const char* remedy;
};
Findings judge_trials(const std::vector<Trial>& trials);
// `status` is the text of /proc/self/status.
Finding judge_inheritance(const std::string& status);
Finding judge_memory_map(const Places& places);

// The directory's file system and room, writing and locking in it, and the exchange (a URI; "": dir: in the
// directory). Leaves nothing behind.
Findings examine_storage(const std::string& directory, const std::string& exchange);
// `type` as statfs has it.
std::string file_system_name(unsigned long type);
bool is_network_file_system(unsigned long type);
Finding judge_directory(const std::string& directory, unsigned long file_system, unsigned long long free_bytes);

// The place for near images of `spec`: what check_near_place() looks at, writing, and room. `automatic`: it is one of
// --store auto, which does without it. Leaves nothing behind.
Finding examine_near_place(const StoreSpec& spec, const std::string& place, bool automatic);
struct HostMemory {
  std::uint64_t total = 0, free = 0, limit = 0;  // bytes; ~0: no limit
};
Finding judge_near_memory(const HostMemory& memory);
// Whether systemd-logind empties /dev/shm behind its users (logind.conf(5)). Nothing unless images of this user would
// go. `root`: "", and for tests the directory that stands for /. `place` has no links.
Findings examine_remove_ipc(const std::string& root, const std::string& place, unsigned uid, const std::string& user);
// The hosts that copies and parities need.
Findings judge_hosts_for(const StoreSpec& spec);

// Whether a program, and the libraries it names, use an adapter past libibverbs (direct verbs).
Findings examine_program(const std::string& path);

}  // namespace shadowib::cli
