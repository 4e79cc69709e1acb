#include "hooks/agent/round_outcome.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/imager/descriptors.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/member_record.h"
#include "hooks/job/near_directory.h"
#include "hooks/raw/tasks.h"
#include "hooks/raw/text.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"
#include "shadowib/base/shared_names.h"

namespace shadowib {
namespace {

constexpr std::int64_t kToldNs = 30'000'000'000;  // until people are told again why a program stands

}  // namespace

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

// The set that the command may have committed, by the file system. The id tells it from a later one of that number.
RoundOutcome::SetState RoundOutcome::look_for_set(std::string* path) const {
  std::string owner;
  std::uint32_t number = 0;
  const std::size_t slash = request_.staging.rfind('/');
  if (slash == std::string::npos || !parse_hidden_name(request_.staging.substr(slash + 1), &owner, &number))
    return SetState::kUnknown;
  *path = request_.staging.substr(0, slash + 1) + set_name(owner, number);
  const std::string manifest = *path + "/manifest.json";
  revalidate_parent(manifest);
  char text[512];  // the id stands at its beginning
  const long length = read_small_file(manifest.c_str(), text, sizeof(text));
  if (length == -ENOENT || length == -ENOTDIR) return SetState::kAbsent;
  if (length < 0) return SetState::kUnknown;
  return std::strstr(text, to_hex(request_.set_id).c_str()) != nullptr ? SetState::kThere : SetState::kAbsent;
}

// The command has ended and the exchange does not answer: whether this member goes on. Does not return if it dies.
bool RoundOutcome::may_end_by_set() {
  std::string path;
  const SetState set = look_for_set(&path);
  if (set == SetState::kThere && is_late()) {
    log_line(LogLevel::kWarn,
             "checkpoint %" PRIu64
             ": %.300s is committed, and the job was to end by it; this member ends without the "
             "command's word, since the exchange does not answer",
             request_.number, path.c_str());
    set_path_ = path;
    die();
  }
  return set == SetState::kAbsent;
}

bool RoundOutcome::is_late() const { return monotonic_ns() > request_.deadline_ns + RoundRequest::kLateNs; }

void RoundOutcome::await_decision() {
  std::uint64_t token = 0;
  std::int64_t told_ns = 0;
  for (bool alive = true;;) {
    std::string text;
    bool found = false;
    // The first look does not wait, nor does that after the command has gone.
    Status status =
        messages_.watch(&token, alive ? RoundMessages::kSliceMs : 0, messages_.key("outcome"), &text, &found);
    if (status.code() == Code::kTimeout) status = {};
    if (found && obey(text).ok() && kill_ourselves_) die();
    if (found) return;
    if (!alive && (status.ok() || !request_.kill || may_end_by_set())) return;
    if (!request_.kill && is_late()) return;
    if (!status.ok() && (told_ns == 0 || monotonic_ns() - told_ns > kToldNs)) {
      told_ns = monotonic_ns();
      log_line(LogLevel::kWarn,
               "checkpoint %" PRIu64
               ": the program stands until it is known how this ends: its image is saved, and the "
               "exchange does not answer: %.300s",
               request_.number, status.text());
    }
    messages_.give_up_again();
    alive = messages_.command_alive();  // and look once more: it may have decided before it ended
    if (!status.ok()) raw_sleep_ms(RoundMessages::kSliceMs);
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

// By the command's word it says so first: commands tell this end from a death by it. The members' end may end the
// command, so the history cannot tell.
void RoundOutcome::die() {
  tell_of_the_end();
  if (kill_ourselves_) record_saved_by_lock(g_agent.alive_lock.load(), set_path_.substr(set_path_.rfind('/') + 1));
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
