// This member's part in one checkpoint, phase by phase (agent.h).
#include "hooks/agent/round.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/descriptor_room.h"
#include "hooks/agent/filter_probe.h"
#include "hooks/agent/forced_clc.h"
#include "hooks/agent/gate.h"
#include "hooks/agent/hook_registry.h"
#include "hooks/agent/join.h"
#include "hooks/agent/loader_thread.h"
#include "hooks/agent/mapped_files.h"
#include "hooks/agent/own_checkpoints.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/agent/restarted.h"
#include "hooks/agent/round_messages.h"
#include "hooks/agent/round_outcome.h"
#include "hooks/agent/round_saver.h"
#include "hooks/agent/round_settle.h"
#include "hooks/agent/start_command.h"
#include "hooks/imager/descriptors.h"
#include "hooks/imager/imager.h"
#include "hooks/imager/shared_memory.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/near_directory.h"
#include "hooks/job/phase.h"
#include "hooks/launcher/launcher.h"
#include "hooks/raw/room.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/fault.h"
#include "hooks/threads/request_signals.h"
#include "hooks/threads/stop.h"
#include "hooks/threads/thread_judge.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"
#include "shadowib/base/shared_names.h"
#include "shadowib/base/this_host.h"

namespace shadowib {
namespace {

constexpr int kParkHelpersMs = 5000, kLauncherCallsMs = 5000, kStopAgainMs = 10000, kStopAgainPauseMs = 1000,
              kLongestPauseMs = 60000;

class Round {
 public:
  explicit Round(RoundRequest request) : request_(std::move(request)) {}
  void run();

 private:
  Status go();
  Status pass(Phase phase);
  Status still_stopped();
  void note_time(Phase phase);
  Status judge_descriptors();
  void add_phase(std::int64_t now);
  Status quiesce();
  Status inspect();
  std::string set_id() const { return to_hex(request_.set_id); }
  std::uint64_t memory_to_save();
  Status tell_host();
  Status start_keeper();
  Status open_image_directory(int* fd);
  Status finish_near(const Status& status);
  Status save();
  Status snapshot(SaveResult* result);
  Status await_saver(SaveResult* result);
  Status publish_saved(const SaveResult& result, std::int64_t save_ns);
  bool is_restarted() const { return g_job.info.generation != generation_; }
  void go_on();
  void end_border();
  void resume();
  void stop_again();

  RoundRequest request_;
  RoundMessages messages_{request_};
  RoundSettle settle_{request_, messages_};
  RoundOutcome outcome_{request_, messages_};
  RoundSaver saver_{request_, messages_};
  const std::uint32_t generation_ = g_job.info.generation;  // before
  bool undecided_ = false;                                  // nobody can tell whether this CLC counts
  bool hooks_ran_ = false, stop_tried_ = false, saved_ = false, went_on_ = false;
  std::int64_t save_began_ns_ = 0, pause_ns_ = 0;
  std::int64_t phase_began_ns_ = 0, phase_began_cpu_ns_ = 0;
  const std::uint64_t operations_ = g_job.exchange->operations();  // before
  std::string times_;                                              // of the phases so far, for the log
  std::string cpu_times_;  // of this thread, which is what a busy machine does not add to
  std::string phases_;     // the same for the command: "join=NS hooks=NS ..."
  std::string objects_;    // how many the program has, counted while it stands
  std::string table_;      // of descriptors and shared memory
  std::string compared_;   // which files of members are one (compare_files)
  SharedMemorySource shared_;
};

void Round::add_phase(std::int64_t now) {
  phases_ += std::string(phases_.empty() ? "" : " ") + phase_text(g_agent.phase.load()).name + "=" +
             std::to_string(now - phase_began_ns_);
}

std::int64_t cpu_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

void add_time(std::int64_t ns, std::string* times) {
  char text[48];
  std::snprintf(text, sizeof(text), "%s%s %.1f", times->empty() ? "" : ", ", phase_text(g_agent.phase.load()).name,
                static_cast<double>(ns) / 1e6);
  *times += text;
}

void Round::note_time(Phase phase) {
  const std::int64_t now = monotonic_ns(), cpu = cpu_ns();
  if (phase != Phase::kJoined) {
    add_time(now - phase_began_ns_, &times_);
    add_time(cpu - phase_began_cpu_ns_, &cpu_times_);
    add_phase(now);
  }
  phase_began_ns_ = now;
  phase_began_cpu_ns_ = cpu;
  if (phase != Phase::kOutcome) return;
  log_line(LogLevel::kInfo, "checkpoint %" PRIu64 " took ms: %s; %" PRIu64 " exchange operations", request_.number,
           times_.c_str(), g_job.exchange->operations() - operations_);
  log_line(LogLevel::kDebug, "checkpoint %" PRIu64 " took ms of processor time: %s", request_.number,
           cpu_times_.c_str());
}

// Descriptors of shadowib: room for those to be opened, and the state of those that are.
Status Round::judge_descriptors() {
  replace_closed_descriptors();
  if (g_agent.closed_descriptors != 0)
    return Status::of(Code::kRefused, EBADF,
                      "the program has closed %d descriptors of shadowib (%d and others) by system calls of its own, "
                      "such as close_range; let it call libc's functions, which leave them open",
                      g_agent.closed_descriptors, g_agent.first_closed);
  return make_descriptor_room();
}

// The phase begins, open to faults. The command sees from barriers which phase a member has reached.
Status Round::pass(Phase phase) {
  note_time(phase);
  g_agent.phase = phase;
  SHADOWIB_TRY(fault_point(phase));
  return phase >= Phase::kSettle && phase <= Phase::kSave ? still_stopped() : Status();
}

Status Round::still_stopped() {
  return stop_lasts() ? Status() : Status::of(Code::kTimeout, 0, "pid %d: %s", raw_getpid(), kStopEndedText);
}

Status Round::quiesce() {
  if (g_agent.participant != nullptr) SHADOWIB_TRY(g_agent.participant->quiesce());
  SHADOWIB_TRY(still_stopped());
  SHADOWIB_TRY(loader_thread_park(kParkHelpersMs));
  SHADOWIB_TRY(stop_wait_exempt_parked(kParkHelpersMs));
  return messages_.barrier(Phase::kQuiesce);
}

// Calls look(), which looks at descriptors of the program as from outside: the kernel orders that. A suppression by
// name fails where the program has no descriptor left, since a report has no names then.
template <typename Look>
Status look_unjudged(Look look) {
#if defined(__SANITIZE_THREAD__)
  const UnjudgedReads unjudged;
#endif
  return look();
}

Status Round::inspect() {
  SHADOWIB_TRY(check_capturable());
  SHADOWIB_TRY(look_unjudged([this] { return prepare_descriptors(std::min(messages_.left_ms(), 2000)); }));
  SHADOWIB_TRY(launcher_announce(g_job.exchange, messages_.key("launcher")));
  SHADOWIB_TRY(messages_.barrier(Phase::kInspect));
  SHADOWIB_TRY(launcher_judge(g_job.exchange, g_job.info.epoch, messages_.key("launcher")));
  SHADOWIB_TRY(look_unjudged([this] { return capture_descriptors(g_job.info.member, &table_); }));
  SHADOWIB_TRY(tell_host());
  if (request_.is_clc()) SHADOWIB_TRY(publish_fields(messages_.own("border"), encode_border(report_border())));
  if (request_.forked) SHADOWIB_TRY(publish_fields(messages_.own("save"), saver_.needs()));
  // Answered by what this member is to save of the memory it shares, and which files it is to compare.
  std::string go, duty;
  SHADOWIB_TRY(messages_.wait_for_key(
      "go", &go, {{messages_.own("files"), describe_mapped_files(), true}, {messages_.own("fds"), table_}},
      messages_.own("memory"), &duty));
  SHADOWIB_TRY(request_.take_choice(go));
  compared_ = compare_files(duty);
  SHADOWIB_TRY(add_comparisons(compared_, &table_));
  return shared_.open(table_, duty);
}

Status Round::open_image_directory(int* fd) {
  if (!request_.near.empty()) return make_near_set(request_.near, g_job.info.job, set_id(), g_job.info.directory, fd);
  revalidate_parent(request_.staging);
  *fd = ::open(request_.staging.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return *fd >= 0 ? Status()
                  : Status::of(Code::kIo, errno, "cannot open the staging directory %.200s: %.60s",
                               request_.staging.c_str(), std::strerror(errno));
}

// An image that stays near has no command that syncs its directory.
Status Round::finish_near(const Status& status) {
  if (request_.near.empty()) return status;
  if (status.error() == ENOSPC)
    return Status::of(Code::kIo, ENOSPC,
                      "no space for image %.60s in %.150s; free space there, name another place with --near, or use "
                      "--store central",
                      request_.image.c_str(), request_.near.c_str());
  SHADOWIB_TRY(status);
  return sync_near_set(request_.near, g_job.info.job, set_id());
}

// Bytes that the process has in memory, but for copies of registered memory.
std::uint64_t Round::memory_to_save() {
  const std::uint64_t memory = own_memory();
  return memory - std::min(memory, saver_.copies()->room());
}

// Before the tables: the command plans copies by the hosts, and refuses before anything is written.
Status Round::tell_host() {
  if (request_.near.empty() && !request_.chooses) return {};
  const char* domain = std::getenv("SHADOWIB_DOMAIN");
  Fields fields{{"host", this_host()}, {"domain", domain != nullptr && domain[0] != '\0' ? domain : this_machine()}};
  if (request_.chooses) {
    // A filter may end the process at a call that nobody has tried: then the images go where they always may.
    const bool may_look = !place_has_filter();
    const std::uint64_t mem = may_look ? std::min(free_memory(), free_space(request_.mem_place.c_str())) : 0;
    fields["bytes"] = std::to_string(memory_to_save() + g_agent.beside_memory);
    fields["mem"] = std::to_string(mem);
    fields["disk"] = std::to_string(may_look ? free_space(request_.disk_place.c_str()) : 0);
  }
  return publish_fields(messages_.own("near"), fields);
}

// One member of a host starts the host's keeper, unless it has one.
Status Round::start_keeper() {
  const std::string host = this_host();
  if (!request_.keepers || is_alive(keeper_lock_path(g_job.info.directory, g_job.info.job, host))) return {};
  const Status claimed = g_job.exchange->claim(messages_.key("keeper/" + host), messages_.own("near"));
  if (claimed.code() == Code::kBusy) return {};
  SHADOWIB_TRY(claimed);
  std::vector<std::string> words{"keeper", g_job.info.job, "--dir", g_job.info.directory};
  if (g_job.info.ib2tcp_network[0] != '\0') words.insert(words.end(), {"--network", g_job.info.ib2tcp_network});
  return start_command(std::move(words), -1);
}

// In a restarted process this is left through go_on_after_restart, and the round is over.
Status Round::snapshot(SaveResult* result) {
  save_began_ns_ = monotonic_ns();
  Saver* saver = nullptr;
  if (request_.forked) SHADOWIB_TRY(saver_.prepare(&saver));
  if (!stop_keep()) return Status::of(Code::kTimeout, 0, "pid %d: %s", raw_getpid(), kStopEndedText);
  int directory = -1;
  SHADOWIB_TRY(open_image_directory(&directory));
  SaveRequest request{.directory_fd = directory,
                      .file_name = request_.image.c_str(),
                      .member = g_job.info.member,
                      .generation = g_job.info.generation,
                      .descriptors = &table_,
                      .shared = shared_.list().data(),
                      .shared_count = static_cast<std::uint32_t>(shared_.list().size()),
                      .request_signals = request_signals(),
                      .processor_level = g_agent.processor_level,
                      .binds_at_start = g_agent.binds_at_start,
                      .deadline_ns = request_.deadline_ns,
                      .inspected = true,
                      .incremental = request_.incremental,
                      .compression = request_.compression,
                      .base_directory = request_.base.c_str(),
                      .base_name = request_.base.empty() ? "" : request_.image.c_str()};
  std::memcpy(request.set_id, request_.set_id, sizeof(request.set_id));
  request.saver = saver;
  request.pinned = saver_.copies();
  note_owned_descriptors();
  SaveOutcome outcome{};
  JobInfo info{};
  Status status = save_image(request, result, &outcome, &info);
  if (status.ok() && outcome == SaveOutcome::kRestarted) {
    go_on_after_restart(info);
    return {};
  }
  raw_close(directory);
  shared_.close();
  SHADOWIB_TRY(hold_record_locks());  // the files just closed may have had some
  if (g_agent.participant != nullptr) g_agent.participant->count_objects(&objects_);
  return status;
}

Status Round::save() {
  SaveResult result{};
  Status status = snapshot(&result);
  if (is_restarted()) return {};
  if (status.ok() && request_.forked) status = await_saver(&result);
  SHADOWIB_TRY(finish_near(status));
  return publish_saved(result, monotonic_ns() - save_began_ns_);
}

Status Round::await_saver(SaveResult* result) {
  SHADOWIB_TRY(saver_.meet());
  if (!request_.kill) {
    go_on();
    saver_.end_copies();
    SHADOWIB_TRY(make_descriptor_room());
  }
  note_time(Phase::kSave);
  g_agent.phase = Phase::kSave;
  return saver_.await(result);
}

Status Round::publish_saved(const SaveResult& result, std::int64_t save_ns) {
  Fields fields;
  fields["image"] = request_.image;
  fields["generation"] = std::to_string(g_job.info.generation);
  fields["backend"] = g_job.info.backend;
  fields["bytes"] = std::to_string(result.bytes);
  fields["xxh3"] = to_hex(result.xxh3);
  fields["settle_ns"] = std::to_string(settle_.settle_ns());
  fields["save_ns"] = std::to_string(save_ns);
  fields["stopped_ns"] = std::to_string(went_on_ ? pause_ns_ : monotonic_ns() - settle_.stopped_at_ns());
  if (request_.chooses) g_agent.beside_memory = result.page_bytes - std::min(result.page_bytes, memory_to_save());
  if (!compared_.empty()) fields["compared"] = compared_;
  if (request_.forked) saver_.describe(&fields);
  if (request_.incremental) describe_packs(result, &fields);
  if (request_.compression != Compression::kNone) {
    fields["compress"] = compression_name(request_.compression);
    fields["page_bytes"] = std::to_string(result.page_bytes);
  }
  add_phase(monotonic_ns());
  fields["phases"] = phases_;
  fields["objects"] = objects_;
  saved_ = true;
  return publish_fields(messages_.own("saved"), fields);
}

Status Round::go() {
  SHADOWIB_TRY(judge_descriptors());
  if (is_in_cluster()) SHADOWIB_TRY(judge_border());
  // A set of the whole job has no logs.
  if (!request_.is_clc() && is_in_cluster() && must_send_again())
    return Status::of(Code::kRefused, EAGAIN,
                      "pid %d: a cluster that went back has not got all messages of this member again; try again",
                      raw_getpid());
  SHADOWIB_TRY(messages_.tell_heard());
  SHADOWIB_TRY(pass(Phase::kJoined));
  SHADOWIB_TRY(start_keeper());
  SHADOWIB_TRY(messages_.barrier(Phase::kJoined));
  SHADOWIB_TRY(pass(Phase::kHooks));
  hooks_ran_ = true;
  run_hooks(0);
  SHADOWIB_TRY(probe_filter());
  SHADOWIB_TRY(judge_threads());  // before a stop signal can meet a filter
  look_at_descriptors();
  if (request_.forked) saver_.prepare_copies();
  SHADOWIB_TRY(launcher_hold_calls(std::min(messages_.left_ms(), kLauncherCallsMs)));
  SHADOWIB_TRY(pass(Phase::kStop));
  SHADOWIB_TRY(messages_.barrier(Phase::kHooks));  // the slowest hook is done: stop together
  stop_tried_ = true;
  SHADOWIB_TRY(settle_.stop());
  SHADOWIB_TRY(messages_.barrier(Phase::kStop));
  SHADOWIB_TRY(pass(Phase::kSettle));
  SHADOWIB_TRY(settle_.settle());
  SHADOWIB_TRY(pass(Phase::kQuiesce));
  SHADOWIB_TRY(quiesce());
  SHADOWIB_TRY(pass(Phase::kInspect));
  SHADOWIB_TRY(inspect());
  SHADOWIB_TRY(pass(request_.forked ? Phase::kSnapshot : Phase::kSave));
  SHADOWIB_TRY(save());
  if (is_restarted()) return {};  // all done
  SHADOWIB_TRY(pass(Phase::kCommit));
  SHADOWIB_TRY(outcome_.wait());
  SHADOWIB_TRY(pass(Phase::kOutcome));
  if (outcome_.kill_ourselves()) outcome_.die();
  return {};
}

// The program has gone on by itself, while we were held up. What is to be undone is undone while it stands.
void Round::stop_again() {
  log_line(LogLevel::kWarn, "checkpoint %" PRIu64 ": the agent was held up for too long; the program went on",
           request_.number);
  // This stop ends by itself, too: what is undone may need a lock that a stopped thread holds.
  const auto stop = [] {
    return stop_threads(kStopAgainMs, 0,
                        monotonic_ns() + kStopAgainMs * std::int64_t{1'000'000} + RoundRequest::kLateNs);
  };
  int pause_ms = kStopAgainPauseMs;
  for (Status status; !(status = stop()).ok(); pause_ms = std::min(2 * pause_ms, kLongestPauseMs)) {
    log_line(LogLevel::kWarn, "checkpoint %" PRIu64 ": it does not stop again: %.200s", request_.number,
             status.text());
    raw_sleep_ms(pause_ms);
  }
}

// Before a thread runs. While nobody knows whether the CLC counts, nothing leaves with the SN of before.
void Round::end_border() {
  if (undecided_) {
    keep_border_closed(request_.number, request_.next_sn);
    return;
  }
  if (request_.is_clc() && outcome_.committed()) adopt_clc(outcome_.clc());
  open_border();
}

// The program goes on, whatever phase was reached.
void Round::go_on() {
  if (went_on_) return;
  went_on_ = true;
  shared_.close();
  end_inspection();
  if (stop_tried_) {
    if (!stop_keep())
      stop_again();  // the program may have unlocked what it had locked
    else if (Status held = hold_record_locks(); !held.ok())
      log_line(LogLevel::kError, "checkpoint %" PRIu64 ": %.300s", request_.number, held.text());
    abandon_descriptors();
    if (is_in_cluster()) end_border();
    if (g_agent.participant != nullptr) g_agent.participant->resume();
    loader_thread_unpark();
    give_back_descriptor_room();
    release_threads();
    pause_ns_ = monotonic_ns() - settle_.stopped_at_ns();
  }
  launcher_release_calls();
  if (hooks_ran_) run_hooks(1);
}

void Round::resume() {
  saver_.end();
  go_on();
  if (stop_tried_ && outcome_.committed()) note_checkpoint_pause(pause_ns_);
  if (outcome_.committed() && is_in_cluster()) restart_interval();
  g_agent.phase = Phase::kNone;
}

void Round::run() {
  Status status = go();
  const bool warns = !status.ok() && messages_.give_up(status);
  if (!status.ok() && saved_ && !outcome_.committed()) outcome_.await_decision();
  if (is_restarted()) return;
  if (request_.is_clc() && saved_) undecided_ = !outcome_.decide_clc();
  if (request_.is_clc()) note_clc(outcome_.committed(), status);
  resume();
  if (!status.ok() && !saved_) outcome_.remove_near();  // the saver has ended, and no command knows of its image
  (void)make_descriptor_room().ok();                    // until the agent waits again
  outcome_.tell(status, warns);
}

}  // namespace

void take_part_in_checkpoint(const std::string& text) {
  RoundRequest request;
  Status status = request.parse(text);
  if (!status.ok()) {
    log_line(LogLevel::kError, "checkpoint request ignored: %s", status.text());
    return;
  }
  if (request.is_clc()) {
    if (!is_new_clc_request(request.cluster, request.number)) return;
  } else {
    if (request.number <= g_agent.last_request) return;
    g_agent.last_request = request.number;
  }
  if (request.concerns(g_job.info.member)) Round(std::move(request)).run();
}

}  // namespace shadowib
