// State of the agent while it runs, for its parts (agent.cc). Internal to hooks/.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "hooks/agent/agent.h"
#include "hooks/job/phase.h"

namespace shadowib {

struct AgentState {
  Participant* participant = nullptr;
  std::atomic<int> alive_lock{-1};             // owned descriptor
  std::atomic<int> cancel{-1};                 // owned eventfd: readable makes the agent leave its wait
  std::atomic<bool> quit{false};               // the process ends
  std::atomic<std::uint32_t> ended{0};         // the agent has left its loop
  std::atomic<Phase> phase{Phase::kNone};      // reached in the checkpoint under way
  std::atomic<std::uint64_t> last_request{0};  // number of the latest checkpoint request seen
  std::uint64_t last_status = 0;
  // Bytes of pages of the last image beyond what the process had in memory behind it: of libraries, if a saver has
  // read them.
  std::uint64_t beside_memory = 0;
  static constexpr std::uint64_t kAll = ~std::uint64_t{0};
  std::uint64_t rewritten = kAll;  // bytes that the program may change beside a saver, by the last one
  // Descriptors of shadowib that the program has closed past the guard: how many, and the first number.
  int closed_descriptors = 0, first_closed = -1;
  int processor_level = 0;           // of SHADOWIB_CPU (imager/processor.h)
  bool binds_at_start = false;       // LD_BIND_NOW
  std::atomic<int> exit_status{-1};  // of a process that ends; -1 before
  std::atomic<bool> stays{false};    // it has ended, and a cluster that went back still needs it
};

extern AgentState g_agent;

// Looks whether the program has closed descriptors of shadowib by system calls of its own. The agent opens
// again what it needs to hear of checkpoints, and to refuse them. Descriptors of a backend cannot come back.
void replace_closed_descriptors();

}  // namespace shadowib
