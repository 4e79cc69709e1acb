#include "hooks/agent/leaving.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/join.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/job/cluster.h"
#include "hooks/job/current_job.h"
#include "hooks/job/member_record.h"
#include "hooks/raw/tasks.h"
#include "shadowib/base/log.h"

namespace shadowib {

void tell_of_the_end() {
  const JobInfo& job = g_job.info;
  const std::string member = std::to_string(job.member);
  // First where it does not need the exchange, which may be gone.
  record_left(alive_path(job.directory, job.job, job.epoch, member), g_agent.exit_status.load());
  Fields fields{{"pid", std::to_string(raw_getpid())}};
  // What it has delivered stays in its cluster (MemberStatus::left_depends).
  if (is_in_cluster()) fields["depends"] = encode_numbers(delivered_so_far());
  (void)publish_fields(std::string(job.epoch) + "/gone/" + member, fields).ok();
}

void end_if_told(const std::string& text) {
  Fields fields;
  if (!decode_fields(text, &fields) || field_number(fields, "everyone") == 0) return;
  log_line(LogLevel::kInfo, "member %u ends: %s", g_job.info.member, field_text(fields, "text").c_str());
  for (;;) ::syscall(SYS_kill, raw_getpid(), SIGKILL);
}

void note_exit_status(int status, void*) { g_agent.exit_status.store(status & 0xff); }

}  // namespace shadowib
