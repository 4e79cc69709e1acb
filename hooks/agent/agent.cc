#include "hooks/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/descriptor_room.h"
#include "hooks/agent/forced_clc.h"
#include "hooks/agent/gate.h"
#include "hooks/agent/guest.h"
#include "hooks/agent/hook_registry.h"
#include "hooks/agent/incarnations.h"
#include "hooks/agent/join.h"
#include "hooks/agent/leaving.h"
#include "hooks/agent/loader_thread.h"
#include "hooks/agent/log_room.h"
#include "hooks/agent/lost_clusters.h"
#include "hooks/agent/own_checkpoints.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/agent/round.h"
#include "hooks/agent/values.h"
#include "hooks/imager/descriptors.h"
#include "hooks/imager/processor.h"
#include "hooks/job/member_record.h"
#include "hooks/launcher/launcher.h"
#include "hooks/raw/raw_signal.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/fault.h"
#include "hooks/threads/request_signals.h"
#include "hooks/threads/stop.h"
#include "hooks/threads/unreadable_state.h"
#include "shadowib/base/arena.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/json_writer.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"
#include "shadowib/base/malloc_arenas.h"
#include "shadowib/base/spare_descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {

AgentState g_agent;

namespace {

constexpr std::size_t kAgentStackBytes = 512 << 10;
constexpr int kExchangeLostMs = 1000;
constexpr std::int64_t kStaysNs = 10'000'000'000;  // until somebody is told
constexpr std::int64_t kExitWaitNs = 2'000'000'000;

SpinLock g_join_lock;
constinit thread_local bool t_is_agent __attribute__((tls_model("initial-exec"))) = false;

// All that a member may be asked for, read at once. What is published later wakes the agent again.
class Requests {
 public:
  Status read() { return g_job.exchange->lookup(keys_, &values_, &found_); }
  // Waits for the next first (Exchange::watch_and_lookup).
  Status await(std::uint64_t* token, int timeout_ms, int cancel_fd) {
    const Status status =
        g_job.exchange->watch_and_lookup(control_, token, timeout_ms, keys_, &values_, &found_, {}, cancel_fd);
    are_read_ = status.ok() || status.code() == Code::kTimeout;
    return status;
  }
  bool are_read() const { return are_read_; }

  const std::string* abort() const { return at(0); }
  const std::string* checkpoint() const { return at(1); }
  const std::string* status() const { return at(2); }
  const std::string* clc() const { return at(3); }   // of this member's cluster
  const std::string* room() const { return at(4); }  // likewise

 private:
  // Null: nobody asks.
  const std::string* at(std::size_t i) const { return i < found_.size() && found_[i] ? &values_[i] : nullptr; }

  static std::vector<std::string> keys_below(const std::string& control) {
    std::vector<std::string> keys;
    for (const char* name : {"/abort", "/checkpoint", "/status"}) keys.push_back(control + name);
    if (!is_in_cluster()) return keys;
    const unsigned cluster = own_cluster().running.index;
    for (const std::string& name : {request_name(cluster), room_name(cluster)}) keys.push_back(control + "/" + name);
    return keys;
  }

  const std::string control_ = std::string(g_job.info.epoch) + "/control";
  const std::vector<std::string> keys_ = keys_below(control_);
  std::vector<std::string> values_;
  std::vector<bool> found_;
  bool are_read_ = false;
};

// A process that was restarted meanwhile is asked in another epoch, and looks there.
void answer_checkpoint_request(const Requests& requests) {
  const std::uint32_t generation = g_job.info.generation;
  for (const std::string* request : {requests.checkpoint(), requests.clc()}) {
    if (request != nullptr) take_part_in_checkpoint(*request);
    if (generation != g_job.info.generation) return;
  }
  Fields fields;
  if (requests.room() != nullptr && decode_fields(*requests.room(), &fields) &&
      is_new_room_request(field_number(fields, "n")))
    note_room_request();
}

void answer_status_request(const std::string& text) {
  Fields fields;
  const std::uint64_t n = decode_fields(text, &fields) ? field_number(fields, "n") : 0;
  if (n <= g_agent.last_status) return;
  g_agent.last_status = n;
  std::string json;
  JsonWriter writer(&json);
  writer.begin_object().member("index", g_job.info.member).member("pid", raw_getpid());
  writer.member("generation", g_job.info.generation).member("phase", number_of(g_agent.phase.load())).key("objects");
  const std::size_t before = json.size();
  if (g_agent.participant != nullptr) g_agent.participant->describe(&json);
  if (json.size() == before) writer.raw("{}");
  launcher_describe(&json);
  if (is_in_cluster()) describe_own_cluster(writer);
  writer.end_object();
  (void)g_job.exchange
      ->publish(
          std::string(g_job.info.epoch) + "/status/" + std::to_string(n) + "/" + std::to_string(g_job.info.member),
          json)
      .ok();
}

// A look for requests that opens what the next watches hold open.
Status watch_with_room(std::uint64_t* token) {
  SHADOWIB_TRY(make_descriptor_room());
  Status status = g_job.exchange->watch(std::string(g_job.info.epoch) + "/control", token, 0, g_agent.cancel.load());
  give_back_descriptor_room();
  return status;
}

int wait_ms() {
  int least = own_checkpoint_wait_ms();
  if (!is_in_cluster()) return least;
  for (const int wait : {forced_clc_wait_ms(), lost_clusters_wait_ms(), gates_wait_ms(), log_room_wait_ms()})
    if (least < 0 || (wait >= 0 && wait < least)) least = wait;
  return least;
}

// What a member does whenever it has been woken, and as long as it is one. Not ok: it could not read what it may have
// been woken for.
Status look_around(Requests& requests) {
  (void)make_descriptor_room().ok();  // a checkpoint that finds none says so
  const Status read = requests.are_read() ? Status() : requests.read();
  if (requests.abort() != nullptr) end_if_told(*requests.abort());
  end_with_the_job(g_job.exchange, g_job.info.epoch);
  launcher_take_events(g_job.exchange, g_job.info.epoch);
  if (is_in_cluster()) {
    hear_incarnations();
    judge_lost_clusters(monotonic_ns());
    look_at_gates();
    ask_for_log_room();
  }
  if (!read.ok()) return read;
  if (requests.status() != nullptr) answer_status_request(*requests.status());
  answer_checkpoint_request(requests);
  return {};
}

// A member that ends takes with it what a cluster that went back has not got again yet. Nothing wakes the program's
// thread meanwhile: it waits in agent_has_ended().
void stay_until_all_is_sent_again() {
  g_agent.stays.store(true);
  for (std::int64_t told = monotonic_ns(); is_in_cluster() && must_send_again();) {
    if (const std::int64_t now = monotonic_ns(); now - told > kStaysNs) {
      told = now;
      log_line(
          LogLevel::kWarn,
          "member %u has ended, and stays until a cluster that went back has got its messages again; who ends it "
          "loses them",
          g_job.info.member);
    }
    raw_sleep_ms(gates_wait_ms());
    Requests requests;
    (void)look_around(requests).ok();
    give_back_descriptor_room();
  }
  g_agent.stays.store(false);
}

// The exchange is lost: harmless while the job runs. Look again now and then, in case it comes back.
void wait_for_exchange(const Status& why) {
  log_line(LogLevel::kDebug, "waiting for requests: %s", why.text());
  pollfd cancel{g_agent.cancel.load(), POLLIN, 0};
  ::syscall(SYS_poll, &cancel, 1, kExchangeLostMs);
}

void* agent_main(void*) {
  ::prctl(PR_SET_NAME, "shadowib-agent");
  t_is_agent = true;
  stop_exempt_this_thread();
  note_malloc_arena();  // what it calls of libc while the program is stopped may allocate
  std::uint64_t token = 0;
  std::uint32_t generation = g_job.info.generation;
  while (!g_agent.quit.load()) {
    if (generation != g_job.info.generation) token = 0, generation = g_job.info.generation;
    // Somebody has to take them, whatever the program's threads have blocked.
    const std::uint64_t requests = request_signals();
    raw_sigmask(SIG_UNBLOCK, &requests, nullptr);
    Requests asked;
    Status status = asked.await(&token, wait_ms(), g_agent.cancel.load());
    raw_sigmask(SIG_BLOCK, &requests, nullptr);
    if (g_agent.quit.load()) break;
    replace_closed_descriptors();
    if (status.error() == EMFILE) status = watch_with_room(&token);
    if (!status.ok() && status.code() != Code::kTimeout) wait_for_exchange(status), token = 0;
    const Status looked = look_around(asked);
    start_own_checkpoint();
    if (is_in_cluster()) start_forced_clc();
    give_back_descriptor_room();
    // The watch has moved on, and wakes nobody again for a request that could not be read.
    if (!looked.ok()) wait_for_exchange(looked), token = 0;
  }
  stay_until_all_is_sent_again();
  tell_of_the_end();
  stop_unexempt_this_thread();
  g_agent.ended.store(1);
  futex_wake(&g_agent.ended, 1 << 30);
  return nullptr;
}

Status start_agent_thread() {
  AllSignalsBlocked blocked;  // the thread inherits it, until it is exempt
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kAgentStackBytes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  int rc = ::pthread_create(&thread, &attributes, agent_main, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (rc != 0) return Status::of(Code::kIo, rc, "cannot create the agent thread (limit of processes?)");
  return {};
}

// The child is no member, has none of our threads, and drops the descriptors it inherited: among them the lock that
// says the parent is alive.
void agent_in_child() {
  g_join_lock.reset();
  hooks_reset_after_fork();
  values_reset_after_fork();
  arena_reset_lock_after_fork();
  stop_reset_after_fork();
  give_back_request_signals();
  loader_thread_forget();
  launcher_reset_after_fork();
  gates_reset_after_fork();
  forget_owned_descriptors(true);
  forget_owned_mappings(false);
  arena_forget_secrets();
  log_restart(nullptr);
  g_job.inherited = g_job.inherited || g_job.member_pid != 0 || g_job.guest_pid != 0;
  g_job.member_pid = 0;
  g_job.guest_pid = 0;
  g_job.exchange = nullptr;
  g_agent.alive_lock = -1;
  g_agent.cancel = -1;
  g_agent.closed_descriptors = 0;
  g_agent.quit = false;
  g_agent.ended = 0;
  g_agent.exit_status = -1;
  g_agent.phase = Phase::kNone;
}

// What the loader was told when the program started.
Status read_processor_choice() {
  const char* level = std::getenv("SHADOWIB_CPU");
  g_agent.processor_level = level == nullptr || level[0] == '\0' ? kAnyProcessorLevel : processor_level(level);
  if (g_agent.processor_level < 0)
    return Status::of(
        Code::kUsage, 0,
        "SHADOWIB_CPU=%.60s is none of x86-64, x86-64-v2, x86-64-v3 and x86-64-v4; shadowib run --cpu sets it",
        level);
  const char* bind_now = std::getenv("LD_BIND_NOW");
  g_agent.binds_at_start = bind_now != nullptr && bind_now[0] != '\0';
  return {};
}

void watch_forks() {
  static bool handler_registered = false;
  if (handler_registered) return;
  log_init_from_environment();
  ::pthread_atfork(nullptr, nullptr, agent_in_child);
  ::on_exit(note_exit_status, nullptr);
  handler_registered = true;
}

Status join_locked() {
  SHADOWIB_TRY(fill_job_info(&g_job.info));
  SHADOWIB_TRY(stop_install());
  SHADOWIB_TRY(choose_request_signals());
  SHADOWIB_TRY(read_processor_choice());
  SHADOWIB_TRY(read_cluster_choice());
  note_inherited(std::getenv("SHADOWIB_INHERITED"));
  int alive_lock = -1;
  std::uint64_t last_request = 0;
  SHADOWIB_TRY(enter_job(&g_job.info, &g_job.exchange, &alive_lock, &last_request, &g_agent.last_status));
  g_agent.last_request = last_request;
  g_agent.alive_lock = alive_lock;
  fault_set_member(g_job.info.member);
  if (Status s = introduce_cluster(); !s.ok()) {
    tell_of_the_end();
    close_owned_descriptor(alive_lock);
    return s;
  }
  const int cancel = UnownedDescriptors().own(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (cancel < 0) return Status::of(Code::kIo, errno, "pid %d: no descriptor left for the agent", raw_getpid());
  g_agent.cancel = cancel;
  tie_alive_lock_to_memory(alive_lock);
  reserve_spare_descriptors();
  begin_own_checkpoints();
  SHADOWIB_TRY(loader_thread_start());
  install_request_signals(&g_agent.cancel);
  if (Status s = start_agent_thread(); !s.ok()) {
    give_back_request_signals();
    return s;
  }
  g_job.member_pid.store(raw_getpid());
  log_line(LogLevel::kInfo, "member %u of job %s, epoch %s", g_job.info.member, g_job.info.job, g_job.info.epoch);
  return {};
}

// Waits for the agent's end, within a bound. False if a checkpoint is stopping us first, which needs this thread
// parked.
bool agent_has_ended() {
  Inside inside;
  const std::int64_t deadline = monotonic_ns() + kExitWaitNs;
  while (g_agent.ended.load() == 0 && (monotonic_ns() < deadline || g_agent.stays.load())) {
    if (g_stop_requested.load() != 0) return false;
    futex_wait(&g_agent.ended, 0, 5'000'000);
  }
  return true;
}

// An orderly end: the agent says so, and lets nobody wait for this process. Takes no lock and allocates nothing, for
// programs call _exit in signal handlers.
__attribute__((destructor)) void leave_job() {
  // In a sandbox of the thread's own a call that ends others' waiting may end the process by SIGSYS.
  if (has_own_filter() || !is_member() || t_is_agent) return;
  g_agent.quit.store(true);
  const std::uint64_t one = 1;
  [[maybe_unused]] auto n = ::syscall(SYS_write, g_agent.cancel.load(), &one, sizeof(one));
  // Parked in between, perhaps restarted; a member that stays may be parked again and again.
  for (int left = 2; !agent_has_ended() && (--left > 0 || g_agent.stays.load());) {
  }
  // It is busy, and ends with the process. Nobody is to take this for a death.
  if (g_agent.ended.load() == 0) record_left_by_lock(g_agent.alive_lock, g_agent.exit_status.load());
}

[[noreturn]] void leave_job_and_end(int status) {
  g_agent.exit_status.store(status & 0xff);
  leave_job();
  for (;;) ::syscall(SYS_exit_group, status);
}

}  // namespace

void replace_closed_descriptors() {
  int first = -1;
  // Another descriptor of ours may have got its number already, and one that is always ready would keep the agent
  // awake.
  const bool lost_cancel = !is_still_the_owned_descriptor(g_agent.cancel.load());
  int closed = forget_closed_descriptors(&first);
  if (closed == 0 && !lost_cancel) return;
  if (closed == 0) closed = 1, first = g_agent.cancel.load();
  if (g_agent.closed_descriptors == 0) {
    g_agent.first_closed = first;
    log_line(LogLevel::kWarn, "the program has closed %d descriptors of shadowib, %d and others, past libc", closed,
             first);
  }
  g_agent.closed_descriptors += closed;
  std::unique_ptr<Exchange> exchange;
  if (Exchange::open(g_job.info.exchange, false, &exchange).ok()) g_job.exchange = exchange.release();
  if (lost_cancel) g_agent.cancel = UnownedDescriptors().own(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  forget_spare_descriptors();
  reserve_spare_descriptors();
}

void set_participant(Participant* participant) { g_agent.participant = participant; }

namespace {

Status join(bool as_guest) {
  Inside inside;
  SpinGuard guard(g_join_lock);
  if (is_in_job()) return {};
  watch_forks();
  return as_guest ? become_guest() : join_locked();
}

__attribute__((constructor)) void offer_to_join() { g_job.join = join; }

}  // namespace

Status publish_fields(const std::string& key, const Fields& fields) {
  return g_job.exchange->publish(key, encode_fields(fields));
}

}  // namespace shadowib

// Destructors do not run then, but for many a program it is the end that it always comes to (GASNet's among them).
extern "C" __attribute__((visibility("default"))) void _exit(int status) { shadowib::leave_job_and_end(status); }
extern "C" __attribute__((visibility("default"))) void _Exit(int status) noexcept {
  shadowib::leave_job_and_end(status);
}
