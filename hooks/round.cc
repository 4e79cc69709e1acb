// This member's part in one checkpoint, phase by phase (agent.h).
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <vector>

#include "hooks/agent_state.h"
#include "hooks/fault.h"
#include "hooks/imager/descriptors.h"
#include "hooks/imager/imager.h"
#include "hooks/loader_thread.h"
#include "hooks/stop.h"
#include "hooks/tasks.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr int kSliceMs = 200;  // how often a waiting member looks whether the command lives
constexpr int kSettleTries = 5;
constexpr int kRehearsals = 20;
constexpr int kRehearsalMs = 50;
constexpr std::int64_t kSettleNs = 2'000'000'000;
constexpr int kParkHelpersMs = 5000;

class Round {
 public:
  Status parse(const std::string& request);
  bool concerns_us() const {
    return std::find(members_.begin(), members_.end(), g_agent.info.member) != members_.end();
  }
  std::uint64_t number() const { return n_; }
  void run();

 private:
  Status go();
  Status stop();
  Status settle();
  Status settle_once(int attempt);
  Status run_a_moment(int attempt);
  Status inspect();
  Status save();
  Status wait_for_outcome();
  Status obey(const std::string& outcome);
  void await_decision();
  void die();
  void finish(const Status& status);
  void note_outcome(const Status& status);
  void remove_leavings();

  Status pass(int phase);
  void note_time(int phase);
  Status barrier(const std::string& name);
  Status wait_for_key(const char* name, std::string* value);
  Status check_others();
  void abort_round(const Status& status);
  std::string key(const std::string& rest) const { return checkpoint_key(g_agent.info.epoch, n_, rest); }
  std::string own(const char* what) const { return key(std::string(what) + "/" + me_); }
  std::string image_name() const { return "member-" + me_ + ".img"; }
  int left_ms() const;

  std::uint64_t n_ = 0;
  std::vector<std::uint32_t> members_;
  std::string me_, staging_, prefix_, abort_key_, command_lock_;
  std::uint8_t set_id_[16] = {};
  bool saved_ = false, hooks_ran_ = false, stop_tried_ = false, kill_ourselves_ = false;
  std::int64_t deadline_ns_ = 0, stopped_at_ns_ = 0, settle_ns_ = 0, save_ns_ = 0;
  std::int64_t phase_began_ns_ = 0;
  std::string times_;  // of the phases so far
  std::string table_, outcome_text_;
  bool committed_ = false;
};

bool parse_hex(const std::string& text, std::uint8_t* bytes, std::size_t count) {
  if (text.size() != 2 * count) return false;
  for (std::size_t i = 0; i < 2 * count; ++i) {
    char c = text[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    bytes[i / 2] = static_cast<std::uint8_t>(bytes[i / 2] << 4 | digit);
  }
  return true;
}

Status Round::parse(const std::string& request) {
  Fields fields;
  if (!decode_fields(request, &fields))
    return Status::of(Code::kVersion, 0, "the checkpoint command speaks another protocol than %d", kProtocolVersion);
  n_ = field_number(fields, "n");
  const char* p = field_text(fields, "members").c_str();
  while (*p != '\0') {
    members_.push_back(static_cast<std::uint32_t>(parse_number(&p)));
    if (*p == ',')
      ++p;
    else
      break;
  }
  staging_ = field_text(fields, "staging");
  if (!parse_hex(field_text(fields, "set"), set_id_, sizeof(set_id_)))
    return Status::of(Code::kVersion, 0, "the checkpoint request names no set");
  deadline_ns_ = monotonic_ns() + static_cast<std::int64_t>(field_number(fields, "timeout_ms")) * 1000000;
  me_ = std::to_string(g_agent.info.member);
  prefix_ = key("");
  abort_key_ = key("abort");
  command_lock_ =
      alive_path(g_agent.info.directory, g_agent.info.job, g_agent.info.epoch, "ckpt" + std::to_string(n_));
  return {};
}

int Round::left_ms() const {
  const std::int64_t left = (deadline_ns_ - monotonic_ns()) / 1000000;
  return left < 0 ? 0 : static_cast<int>(std::min<std::int64_t>(left, 1 << 30));
}

// The phase begins: told to the command, which shows progress, and open to faults.
// What a phase's time went into, for the log.
const char* phase_name(int phase) {
  switch (phase) {
    case 10:
      return "join";
    case 20:
      return "hooks";
    case 30:
      return "stop";
    case 40:
      return "settle";
    case 50:
      return "quiesce";
    case 60:
      return "inspect";
    case 70:
      return "save";
    default:
      return "commit";
  }
}

void Round::note_time(int phase) {
  const std::int64_t now = monotonic_ns();
  char text[48];
  std::snprintf(text, sizeof(text), "%s%s %.1f", times_.empty() ? "" : ", ", phase_name(g_agent.phase),
                static_cast<double>(now - phase_began_ns_) / 1e6);
  if (phase != 10) times_ += text;
  phase_began_ns_ = now;
  if (phase == 90) log_line(LogLevel::kInfo, "checkpoint %" PRIu64 " took ms: %s", n_, times_.c_str());
}

Status Round::pass(int phase) {
  note_time(phase);
  g_agent.phase = phase;
  Fields fields;
  fields["phase"] = std::to_string(phase);
  fields["monotonic_ns"] = std::to_string(monotonic_ns());
  SHADOWIB_TRY(publish_fields(own("phase"), fields));
  return fault_point(phase);
}

Status Round::check_others() {
  std::string text;
  bool found = false;
  SHADOWIB_TRY(g_agent.exchange->get(abort_key_, &text, &found));
  if (found) return Status::of(Code::kAborted, 0, "%.300s", text.c_str());
  if (!is_alive(command_lock_)) return Status::of(Code::kAborted, 0, "the checkpoint command is gone");
  if (left_ms() == 0)
    return Status::of(Code::kTimeout, 0, "the checkpoint's time-out ran out in phase %d", g_agent.phase.load());
  return {};
}

Status Round::barrier(const std::string& name) {
  for (;;) {
    Status status = g_agent.exchange->barrier(key("b/" + name), me_, static_cast<int>(members_.size()),
                                              std::min(kSliceMs, left_ms()), abort_key_);
    if (status.code() != Code::kTimeout && status.code() != Code::kAborted) return status;
    SHADOWIB_TRY(check_others());
    if (status.code() == Code::kAborted) return status;
  }
}

Status Round::wait_for_key(const char* name, std::string* value) {
  std::uint64_t token = 0;
  for (;;) {
    bool found = false;
    SHADOWIB_TRY(g_agent.exchange->get(key(name), value, &found));
    if (found) return {};
    SHADOWIB_TRY(check_others());
    Status status = g_agent.exchange->watch(prefix_, &token, std::min(kSliceMs, left_ms()), -1);
    if (!status.ok() && status.code() != Code::kTimeout) return status;
  }
}

// Stops the threads where the loader and malloc are usable: a restart needs them before the threads go on (H14).
Status Round::stop() {
  stop_tried_ = true;
  if (g_agent.participant != nullptr) g_agent.participant->stopping();
  for (int attempt = 0;; ++attempt) {
    SHADOWIB_TRY(stop_threads(std::min(left_ms(), 10000)));
    Status rehearsal = loader_rehearse(kRehearsalMs);
    if (rehearsal.ok()) break;
    release_threads();
    if (attempt == kRehearsals)
      return Status::of(Code::kRefused, 0, "pid %d: %.250s in %d attempts", raw_getpid(), rehearsal.text(), attempt);
    SHADOWIB_TRY(loader_rehearse(std::min(left_ms(), 5000)));  // ends as soon as the holder lets go
  }
  stopped_at_ns_ = monotonic_ns();
  return {};
}

Status Round::settle_once(int attempt) {
  const std::string prefix = key("s/" + std::to_string(attempt));
  SettleContext context{};
  context.job = &g_agent.info;
  context.exchange = g_agent.exchange;
  context.prefix = prefix.c_str();
  context.abort_key = abort_key_.c_str();
  context.members = members_.data();
  context.member_count = static_cast<std::uint32_t>(members_.size());
  context.deadline_ns = std::min(deadline_ns_, monotonic_ns() + kSettleNs);
  return g_agent.participant != nullptr ? g_agent.participant->settle(context) : Status();
}

// All members find out together whether all have settled; if one has not, all run a moment and stop again.
Status Round::settle() {
  for (int attempt = 0;; ++attempt) {
    const std::string number = std::to_string(attempt);
    Status status = settle_once(attempt);
    if (status.ok()) settle_ns_ = monotonic_ns() - stopped_at_ns_;
    if (!status.ok() && status.code() != Code::kTimeout) return status;
    if (!status.ok()) SHADOWIB_TRY(g_agent.exchange->publish(key("again/" + number + "/" + me_), status.text()));
    SHADOWIB_TRY(barrier("40." + number));
    std::vector<std::string> again;
    SHADOWIB_TRY(g_agent.exchange->list(key("again/" + number), &again));
    if (again.empty()) return {};
    if (attempt + 1 == kSettleTries) {
      std::string why;
      bool found = false;
      SHADOWIB_TRY(g_agent.exchange->get(key("again/" + number + "/" + again[0]), &why, &found));
      return Status::of(Code::kRefused, 0, "member %.20s does not settle in %d tries: %.250s", again[0].c_str(),
                        kSettleTries, why.c_str());
    }
    log_line(LogLevel::kInfo, "checkpoint %" PRIu64 ": try %d: %s; running on for a moment", n_, attempt + 1,
             status.ok() ? "settled, but another member is not" : status.text());
    SHADOWIB_TRY(run_a_moment(attempt));
  }
}

Status Round::run_a_moment(int attempt) {
  if (g_agent.participant != nullptr) g_agent.participant->resume();
  release_threads();
  timespec moment{0, 20'000'000};
  ::syscall(SYS_nanosleep, &moment, nullptr);
  SHADOWIB_TRY(barrier("41." + std::to_string(attempt)));  // nobody stops while others still settle
  SHADOWIB_TRY(stop());
  return barrier("42." + std::to_string(attempt));
}

Status Round::inspect() {
  SHADOWIB_TRY(check_capturable());
  SHADOWIB_TRY(prepare_descriptors(std::min(left_ms(), 2000)));
  SHADOWIB_TRY(barrier("60"));
  SHADOWIB_TRY(capture_descriptors(g_agent.info.member, &table_));
  SHADOWIB_TRY(g_agent.exchange->publish(own("files"), describe_mapped_files()));
  SHADOWIB_TRY(g_agent.exchange->publish(own("fds"), table_));
  std::string go;
  return wait_for_key("go", &go);
}

std::string hex(const std::uint8_t* bytes, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i)
    text += "0123456789abcdef"[bytes[i] >> 4], text += "0123456789abcdef"[bytes[i] & 15];
  return text;
}

// In a restarted process this is left through go_on_after_restart, and the round ends as if it had been committed.
Status Round::save() {
  const std::string file = image_name();
  const std::int64_t start = monotonic_ns();
  int directory = ::open(staging_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0)
    return Status::of(Code::kIo, errno, "cannot open the staging directory %.200s: %.60s", staging_.c_str(),
                      std::strerror(errno));
  SaveRequest request{directory, file.c_str(), {}, g_agent.info.member, g_agent.info.generation, &table_};
  std::memcpy(request.set_id, set_id_, sizeof(set_id_));
  note_owned_descriptors();
  SaveResult result{};
  SaveOutcome outcome{};
  JobInfo info{};
  Status status = save_image(request, &result, &outcome, &info);
  if (status.ok() && outcome == SaveOutcome::kRestarted) {
    go_on_after_restart(info);
    committed_ = true;
    return {};
  }
  raw_close(directory);
  SHADOWIB_TRY(status);
  save_ns_ = monotonic_ns() - start;
  Fields fields;
  fields["image"] = file;
  fields["generation"] = std::to_string(g_agent.info.generation);
  fields["backend"] = g_agent.info.backend;
  fields["bytes"] = std::to_string(result.bytes);
  fields["xxh3"] = hex(result.xxh3, sizeof(result.xxh3));
  fields["settle_ns"] = std::to_string(settle_ns_);
  fields["save_ns"] = std::to_string(save_ns_);
  fields["stopped_ns"] = std::to_string(monotonic_ns() - stopped_at_ns_);
  saved_ = true;
  return publish_fields(own("saved"), fields);
}

Status Round::wait_for_outcome() {
  std::string text;
  SHADOWIB_TRY(wait_for_key("outcome", &text));
  return obey(text);
}

Status Round::obey(const std::string& text) {
  Fields fields;
  if (!decode_fields(text, &fields))
    return Status::of(Code::kVersion, 0, "the checkpoint's outcome has another protocol");
  if (fields.count("committed") == 0)
    return Status::of(Code::kAborted, 0, "%.300s", field_text(fields, "aborted").c_str());
  committed_ = true;
  outcome_text_ = field_text(fields, "committed");
  kill_ourselves_ = field_number(fields, "kill") != 0;
  return {};
}

// With its image saved a member has no say any more: the command may commit, and kill, whatever becomes of the
// member. So one that gives up then waits for the decision as long as there is somebody to make it.
void Round::await_decision() {
  std::uint64_t token = 0;
  for (bool alive = true;;) {
    std::string text;
    bool found = false;
    if (!g_agent.exchange->get(key("outcome"), &text, &found).ok()) return;
    if (found && obey(text).ok() && kill_ourselves_) die();
    if (found || !alive) return;
    alive = is_alive(command_lock_);  // and look once more: it may have decided before it ended
    (void)g_agent.exchange->watch(prefix_, &token, alive ? kSliceMs : 0, -1).ok();
  }
}

void Round::die() {
  linger_for_kill();
  ::syscall(SYS_kill, raw_getpid(), SIGKILL);
}

Status Round::go() {
  const std::uint32_t generation = g_agent.info.generation;
  SHADOWIB_TRY(pass(10));
  SHADOWIB_TRY(barrier("10"));
  SHADOWIB_TRY(pass(20));
  hooks_ran_ = true;
  run_hooks(0);
  SHADOWIB_TRY(pass(30));
  SHADOWIB_TRY(barrier("20"));  // the slowest hook is done: stop together
  SHADOWIB_TRY(stop());
  SHADOWIB_TRY(barrier("30"));
  SHADOWIB_TRY(pass(40));
  SHADOWIB_TRY(settle());
  SHADOWIB_TRY(pass(50));
  if (g_agent.participant != nullptr) SHADOWIB_TRY(g_agent.participant->quiesce());
  SHADOWIB_TRY(loader_thread_park(kParkHelpersMs));
  SHADOWIB_TRY(stop_wait_exempt_parked(kParkHelpersMs));
  SHADOWIB_TRY(barrier("50"));
  SHADOWIB_TRY(pass(60));
  SHADOWIB_TRY(inspect());
  SHADOWIB_TRY(pass(70));
  SHADOWIB_TRY(save());
  if (g_agent.info.generation != generation) return {};  // restarted: all done
  SHADOWIB_TRY(pass(80));
  SHADOWIB_TRY(wait_for_outcome());
  SHADOWIB_TRY(pass(90));
  if (kill_ourselves_) die();
  return {};
}

// Tells the others. The reason is published before the abort, so that whoever sees the abort finds it.
void Round::abort_round(const Status& status) {
  if (status.code() != Code::kAborted && !publish_fields(own("fail"), fields_of_status(status)).ok()) return;
  const std::string text = "member " + me_ + ": " + status.text();
  (void)g_agent.exchange->claim(abort_key_, text).ok();
}

void Round::note_outcome(const Status& status) {
  std::snprintf(g_agent.outcome, sizeof(g_agent.outcome), "%s", committed_ ? outcome_text_.c_str() : status.text());
  g_agent.committed = committed_;
  g_agent.rounds.fetch_add(1);
  futex_wake(&g_agent.rounds, 1 << 30);
}

// A command that died in the middle cannot remove its staging directory; the last member to resume does.
void Round::remove_leavings() {
  if (committed_ || is_alive(command_lock_)) return;
  ::unlink((staging_ + "/" + image_name()).c_str());
  ::rmdir(staging_.c_str());
}

void Round::finish(const Status& status) {
  if (stop_tried_) {
    abandon_descriptors();
    if (g_agent.participant != nullptr) g_agent.participant->resume();
    loader_thread_unpark();
    release_threads();
  }
  if (hooks_ran_) run_hooks(1);
  g_agent.phase = 0;
  note_outcome(status);  // before "done": the command's end then finds it
  remove_leavings();
  Fields fields;
  fields["committed"] = committed_ ? "1" : "0";
  (void)publish_fields(own("done"), fields).ok();
  log_line(status.ok() ? LogLevel::kInfo : LogLevel::kWarn, "checkpoint %" PRIu64 ": %s%s", n_,
           committed_ ? "committed as " : "not taken: ", committed_ ? outcome_text_.c_str() : status.text());
}

void Round::run() {
  const std::uint32_t generation = g_agent.info.generation;
  Status status = go();
  if (!status.ok()) abort_round(status);
  if (!status.ok() && saved_ && !committed_) await_decision();
  if (g_agent.info.generation == generation)
    finish(status);
  else
    note_outcome(status);
}

}  // namespace

void take_part_in_checkpoint(const std::string& request) {
  Round round;
  Status status = round.parse(request);
  if (!status.ok()) {
    log_line(LogLevel::kError, "checkpoint request ignored: %s", status.text());
    return;
  }
  if (round.number() <= g_agent.last_request) return;
  g_agent.last_request = round.number();
  if (round.concerns_us()) round.run();
}

}  // namespace shadowib
