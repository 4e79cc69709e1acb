#include "hooks/launcher/membership.h"

#include <cstdlib>

#include "hooks/job/current_job.h"
#include "hooks/launcher/answering.h"
#include "hooks/launcher/board.h"
#include "hooks/launcher/rank.h"
#include "hooks/launcher/session_directories.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/log.h"

namespace shadowib {

// So that no checkpoint is without it.
void join_as_rank() {
  LauncherRank& r = launcher_rank();
  r.connected = true;
  if (const char* job = std::getenv("SHADOWIB_JOB"); job == nullptr || *job == '\0') return;
  if (const Status status = join_job(); !status.ok())
    log_line(LogLevel::kWarn, "rank %u of %s is in no job of shadowib: %s", r.rank, r.name, status.text());
}

void leave_as_rank() {
  Inside inside;
  LauncherRank& r = launcher_rank();
  r.connected = false;
  forget_events();
  remove_session_directories(&r.directories_made);
  if (!is_member()) return;
  const Status status = Board(job_exchange(), job_info().epoch, r.name).publish_done(r.rank);
  if (!status.ok()) log_line(LogLevel::kWarn, "cannot tell that rank %u has left: %s", r.rank, status.text());
}

}  // namespace shadowib
