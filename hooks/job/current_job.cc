#include "hooks/job/current_job.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "hooks/raw/tasks.h"

namespace shadowib {

constinit CurrentJob g_job;

namespace {

bool is_this_process(const std::atomic<int>& its_pid) {
  const int pid = its_pid.load(std::memory_order_relaxed);
  return pid != 0 && pid == raw_getpid();
}

Status join(bool as_guest) {
  if (g_job.join == nullptr) return Status(Code::kInternal, 0, "this library has no agent that could join a job");
  return g_job.join(as_guest);
}

}  // namespace

bool is_member() { return is_this_process(g_job.member_pid); }
bool is_guest() { return is_this_process(g_job.guest_pid); }
bool is_in_job() { return is_member() || is_guest(); }

Status join_job() {
  const char* guest = std::getenv("SHADOWIB_GUEST");
  return join(guest != nullptr && guest[0] != '\0' && std::strcmp(guest, "0") != 0);
}

Status join_job_as_guest() {
  if (is_member())
    return Status(Code::kBusy, EBUSY, "this process is a member of its job, and so cannot become a guest");
  return join(true);
}

const JobInfo& job_info() { return g_job.info; }
Exchange* job_exchange() { return g_job.exchange; }

}  // namespace shadowib
