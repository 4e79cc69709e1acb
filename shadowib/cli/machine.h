// What this machine offers, found out by trying in child processes. Used by `shadowib doctor`.
#pragma once

#include <string>
#include <vector>

namespace shadowib::cli {

enum class Verdict { kOk, kNote, kMissing };

struct Finding {
  std::string what;
  Verdict verdict;
  std::string detail;
  std::string remedy;  // empty if there is nothing to do
};

// Namespaces, pids of choice, process memory layout, clocks: what a restart needs.
std::vector<Finding> examine_restart();
// Adapters, locked memory, cross memory attach, descriptors: what the backends can use.
std::vector<Finding> examine_devices();

}  // namespace shadowib::cli
