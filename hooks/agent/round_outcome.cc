#include "hooks/agent/round_outcome.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cinttypes>

#include "hooks/agent/own_cluster.h"
#include "hooks/imager/descriptors.h"
#include "hooks/job/near_directory.h"
#include "hooks/raw/tasks.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {

Status RoundOutcome::wait() {
  std::string text;
  SHADOWIB_TRY(messages_.wait_for_key("outcome", &text));
  return obey(text);
}

Status RoundOutcome::obey(const std::string& text) {
  Fields fields;
  if (!decode_fields(text, &fields))
    return Status::of(Code::kVersion, 0, "the checkpoint's outcome has another protocol");
  if (fields.count("committed") == 0) {
    remove_near();
    return Status::of(Code::kAborted, 0, "%.300s", field_text(fields, "aborted").c_str());
  }
  if (request_.is_clc()) {
    Decision decision;
    SHADOWIB_TRY(decode_decision(fields, &decision));
    clc_ = decision.record;
  }
  committed_ = true;
  set_path_ = field_text(fields, "committed");
  kill_ourselves_ = field_number(fields, "kill") != 0;
  return {};
}

// An image that the command knows of goes only by the command's own word: after a death it may have committed the
// set, and told nobody. `gc` takes the rest.
void RoundOutcome::remove_near() {
  if (!request_.near.empty())
    remove_near_image(request_.near, g_job.info.job, to_hex(request_.set_id), request_.image);
}

void RoundOutcome::await_decision() {
  std::uint64_t token = 0;
  for (bool alive = true;;) {
    std::string text;
    bool found = false;
    if (!g_job.exchange->get(messages_.key("outcome"), &text, &found).ok()) return;
    if (found && obey(text).ok() && kill_ourselves_) die();
    if (found || !alive) return;
    if (!request_.kill && monotonic_ns() > request_.deadline_ns + RoundRequest::kLateNs) return;
    alive = messages_.command_alive();  // and look once more: it may have decided before it ended
    (void)messages_.watch(&token, alive ? RoundMessages::kSliceMs : 0).ok();
  }
}

bool RoundOutcome::decide_clc() {
  Decision decided;
  if (committed_) return true;
  if (Status s = decide_as_void(request_.number, request_.next_sn, &decided); !s.ok()) {
    log_line(LogLevel::kWarn, "CLC %s: whether it counts cannot be asked: %s", request_.id().c_str(), s.text());
    return false;
  }
  committed_ = decided.record.claim == federation::ClcRecord::Claim::kCommitted;
  clc_ = decided.record;
  if (committed_) set_path_ = sets_path(g_job.info.directory) + "/" + decided.set;
  return true;
}

// Or a shell's "Killed" and exit code 137 look like a crash. A restart's command tells it for its processes. Nobody
// may be reading standard error: then nothing is told, since the end must not wait.
void RoundOutcome::tell_of_the_end() {
  if (!request_.first_is(g_job.info.member) || g_job.info.generation != 0) return;
  pollfd output{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&output, 1, 0) != 1 || (output.revents & POLLOUT) == 0) return;
  log_line(LogLevel::kWarn, "job %.64s is saved and ends on request: shadowib restart %.300s", g_job.info.job,
           set_path_.c_str());
}

void RoundOutcome::die() {
  tell_of_the_end();
  linger_for_kill();
  ::syscall(SYS_kill, raw_getpid(), SIGKILL);
  ::syscall(SYS_exit_group, 128 + SIGKILL);  // the first process of a pid namespace is still here
}

// A command that died in the middle cannot remove its staging directory; the last member to resume does.
void RoundOutcome::remove_leavings() {
  if (committed_ || messages_.command_alive()) return;
  ::unlink((request_.staging + "/" + request_.image).c_str());
  ::rmdir(request_.staging.c_str());
}

void RoundOutcome::tell(const Status& status, bool warns) {
  remove_leavings();
  const std::string done = encode_fields({{"committed", committed_ ? "1" : "0"}});
  (void)g_job.exchange->publish_alike(messages_.own("done"), done).ok();
  log_line(warns ? LogLevel::kWarn : LogLevel::kInfo, "checkpoint %" PRIu64 ": %s%s", request_.number,
           committed_ ? "committed as " : "not taken: ", committed_ ? set_path_.c_str() : status.text());
}

}  // namespace shadowib
