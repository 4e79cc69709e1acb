// The job that this process is a member of.
#pragma once

#include <atomic>

#include "hooks/job/job_info.h"
#include "shadowib/base/status.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib {

// The calling process becomes a member of its job, if it is none yet: opens the exchange, claims its index, installs
// the stop handler, starts the agent. Idempotent, thread-safe. In a forked child it joins as a new member.
Status join_job();
bool is_member();

// Valid once is_member(). The exchange and info of the current generation.
const JobInfo& job_info();
Exchange* job_exchange();

// Internal to hooks/. The agent writes it; others read it by the functions above.
struct CurrentJob {
  JobInfo info{};
  Exchange* exchange = nullptr;    // never destroyed: after a restart its descriptors are not its own
  std::atomic<int> member_pid{0};  // the process that is a member; a forked child is none
  Status (*join)() = nullptr;      // join_job() calls it; the agent sets it when the library is loaded
};
extern CurrentJob g_job;

}  // namespace shadowib
