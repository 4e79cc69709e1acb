// A member's job: names, places and the numbers of the current generation.
#pragma once

#include <cstdint>

namespace shadowib {

// The facts by which a member finds its job. Filled from the environment at generation 0, by the restart command
// afterwards. Fixed size and trivially copyable: a restart writes it into the restored process (see
// imager/restart.h).
struct JobInfo {
  char job[128];         // SHADOWIB_JOB
  char directory[1024];  // SHADOWIB_DIR, absolute
  char exchange[1024];   // SHADOWIB_EXCHANGE, default dir:<directory>/jobs/<job>/x
  char backend[64];      // SHADOWIB_BACKEND: auto, verbs, ib2tcp
  char epoch[64];        // "g<generation>-<random hex>": prefix of all keys in the exchange
  std::uint32_t generation;
  std::uint32_t member;        // index in the job; kept across restarts
  std::uint32_t member_count;  // at a restart: members of the set
  std::uint32_t step_ms;  // of a restart: how long a member may take to load the backend; barriers have twice that
  char log[256];          // SHADOWIB_LOG of the restarting command, or empty
  char ib2tcp_transport[64];  // SHADOWIB_IB2TCP_TRANSPORT of the restarting command, or empty
  char verbs_library[1024];   // SHADOWIB_IBVERBS of the restarting command, a path made absolute, or empty
  char fault[64];             // SHADOWIB_FAULT of the restarting command, or empty (hooks/threads/fault.h)
  // New fields go to the end: images with an older layout are told less (imager/save/restart_mailbox.h).
  char ib2tcp_network[128];  // --network of the restarting command, or empty
  // Not 0: files are rolled back. The command cuts them once every member is ready, and then tells this member to go.
  std::uint32_t awaits_cut;
  // Not 0: clusters of a federation come back in this epoch, which others have never left (job/recovery.h).
  std::uint32_t recovery;
};

// Twice a step, so that who fails in one is heard of before the others give up.
inline int barrier_ms(const JobInfo& job) { return static_cast<int>(2 * job.step_ms); }

}  // namespace shadowib
