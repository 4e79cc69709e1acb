#include "hooks/job/current_job.h"

#include "hooks/raw/tasks.h"

namespace shadowib {

constinit CurrentJob g_job;

bool is_member() {
  const int pid = g_job.member_pid.load(std::memory_order_relaxed);
  return pid != 0 && pid == raw_getpid();
}

Status join_job() {
  if (g_job.join == nullptr) return Status(Code::kInternal, 0, "this library has no agent that could join a job");
  return g_job.join();
}

const JobInfo& job_info() { return g_job.info; }
Exchange* job_exchange() { return g_job.exchange; }

}  // namespace shadowib
