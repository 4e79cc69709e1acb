// The job that this process is a member of, or a guest.
#pragma once

#include <atomic>

#include "hooks/job/job_info.h"
#include "shadowib/base/status.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// The calling process becomes a member of its job, if it is none yet: opens the exchange, claims its index, installs
// the stop handler, starts the agent. Idempotent, thread-safe. In a forked child it joins as a new member. A process
// with SHADOWIB_GUEST=1 becomes a guest instead (agent/guest.h), and one that is a guest stays one.
Status join_job();
// Becomes a guest, if it is none yet. kBusy: it is a member.
Status join_job_as_guest();
bool is_member();
bool is_guest();
bool is_in_job();  // as one or the other

// Valid once is_in_job(). The exchange and info of the current generation.
const JobInfo& job_info();
Exchange* job_exchange();

// Internal to hooks/. The agent writes it; others read it by the functions above.
struct CurrentJob {
  JobInfo info{};
  Exchange* exchange = nullptr;             // never destroyed: after a restart its descriptors are not its own
  std::atomic<int> member_pid{0};           // the process that is a member; a forked child is none
  std::atomic<int> guest_pid{0};            // likewise
  bool inherited = false;                   // info is that of the parent, which was in a job
  Status (*join)(bool as_guest) = nullptr;  // the functions above call it; the agent sets it when it is loaded
};
extern CurrentJob g_job;

}  // namespace shadowib
