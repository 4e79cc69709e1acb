#include "hooks/agent/guest.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/join.h"
#include "hooks/job/current_job.h"
#include "hooks/job/protocol.h"
#include "hooks/raw/raw_signal.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/fault.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr int kGuestLookMs = 1000;       // between looks at whether the job still has a member
constexpr int kPatienceMs = 5000;        // without one
constexpr int kLeaveMs = 5000;           // from SIGTERM to SIGKILL
constexpr int kRestartWaitMs = 600'000;  // for a restart that is under way, as members wait
constexpr int kStepMs = 20;
constexpr std::size_t kStackBytes = 128 << 10;
constexpr std::uint32_t kMaxGuests = 1'000'000;

// Whether a member of the epoch lives. It asks after the one that lived last, and only then after all.
class LivingMember {
 public:
  LivingMember(const JobInfo& info, Exchange& exchange) : info_(info), exchange_(exchange) {}
  bool is_there() {
    if (!last_.empty() && lives(last_)) return true;
    std::vector<std::string> names;
    if (!exchange_.list(std::string(info_.epoch) + "/member", &names).ok()) return false;
    const auto living = std::find_if(names.begin(), names.end(), [this](const auto& name) { return lives(name); });
    if (living == names.end()) return false;
    last_ = *living;
    return true;
  }

 private:
  bool lives(const std::string& name) const {
    return is_alive(alive_path(info_.directory, info_.job, info_.epoch, name));
  }
  const JobInfo& info_;
  Exchange& exchange_;
  std::string last_;
};

Status no_member(const JobInfo& info) {
  return Status::of(Code::kNotFound, ESRCH, "job %.64s in %.200s has no member to be a guest of; start one first",
                    info.job, info.directory);
}

Status waits_for_restart(const JobInfo& info) {
  return Status::of(Code::kBusy, EAGAIN, "job %.64s is being restarted; its new guest gave up waiting for that",
                    info.job);
}

Status other_time_line(const JobInfo& info) {
  return Status::of(Code::kRefused, ESTALE,
                    "job %.64s was restarted since this process was forked from a member; it cannot be its guest",
                    info.job);
}

// A number that no guest of the epoch has had. First the lock, then the key, as members do.
Status take_number(JobInfo* info, Exchange& exchange, int* alive_lock) {
  std::vector<std::string> names;
  SHADOWIB_TRY(exchange.list(std::string(info->epoch) + "/guest", &names));
  std::uint32_t number = 0;
  for (const std::string& name : names)
    number = std::max(number, static_cast<std::uint32_t>(std::strtoul(name.c_str(), nullptr, 10)) + 1);
  for (;; ++number) {
    info->member = kFirstGuest + number;
    const std::string path = alive_path(info->directory, info->job, info->epoch, lock_name(info->member));
    if ((*alive_lock = hold_alive_lock(path)) < 0 && errno != EAGAIN)
      return Status::of(Code::kIo, errno, "cannot lock %.200s: %.60s", path.c_str(), strerrordesc_np(errno));
    if (*alive_lock < 0) continue;
    const Status status = exchange.claim(guest_key(info->epoch, number), describe_member());
    if (status.ok()) return {};
    release_alive_lock(*alive_lock);
    if (status.code() != Code::kBusy || number >= kMaxGuests) return status;
  }
}

// *again: the job is being restarted, or was meanwhile.
Status try_to_enter(JobInfo* info, Exchange** exchange, int* alive_lock, bool* again) {
  *again = is_alive(job_paths(info->directory, info->job).renewing);
  if (*again) return waits_for_restart(*info);
  std::string epoch, now;
  if (const Status status = read_epoch(*info, &epoch); !status.ok())
    return status.code() == Code::kNotFound ? no_member(*info) : status;
  if (g_job.inherited && epoch != info->epoch) return other_time_line(*info);
  SHADOWIB_TRY(take_epoch(epoch, info));
  std::unique_ptr<Exchange> opened;
  SHADOWIB_TRY(Exchange::open(info->exchange, false, &opened));
  if (!LivingMember(*info, *opened).is_there()) return no_member(*info);
  SHADOWIB_TRY(take_number(info, *opened, alive_lock));
  // A restart that looked for guests before we had the lock makes another epoch.
  Status status = read_epoch(*info, &now);
  *again = status.ok() && now != epoch;
  if (*again) status = waits_for_restart(*info);
  if (status.ok()) status = opened->publish(std::string(info->epoch) + "/guests", "1");
  if (status.ok())
    *exchange = opened.release();
  else
    release_alive_lock(*alive_lock);
  return status;
}

Status enter(JobInfo* info, Exchange** exchange, int* alive_lock) {
  const Deadline patience = Deadline::in_ms(kPatienceMs), restarted = Deadline::in_ms(kRestartWaitMs);
  for (;;) {
    bool again = false;
    const Status status = try_to_enter(info, exchange, alive_lock, &again);
    if (again ? restarted.has_passed() : status.code() != Code::kNotFound || patience.has_passed()) return status;
    raw_sleep_ms(kStepMs);
  }
}

[[noreturn]] void end(const char* why) {
  log_line(LogLevel::kWarn, "guest %u of job %s ends: %s", g_job.info.member - kFirstGuest, g_job.info.job, why);
  ::syscall(SYS_kill, raw_getpid(), SIGTERM);
  raw_sleep_ms(kLeaveMs);
  for (;;) {
    ::syscall(SYS_kill, raw_getpid(), SIGKILL);
    raw_sleep_ms(kGuestLookMs);
  }
}

void look_for_end() {
  std::string text;
  bool found = false;
  Fields fields;
  if (!g_job.exchange->get(end_key(g_job.info.epoch), &text, &found).ok() || !found) return;
  end(decode_fields(text, &fields) ? field_text(fields, "why").c_str() : "its job is over");
}

void* guest_main(void*) {
  ::prctl(PR_SET_NAME, "shadowib-guest");
  LivingMember member(g_job.info, *g_job.exchange);
  std::uint64_t token = 0;
  Deadline alone = Deadline::in_ms(kPatienceMs);
  for (;;) {
    const Status watched =
        g_job.exchange->watch(std::string(g_job.info.epoch) + "/control", &token, kGuestLookMs, -1);
    if (!watched.ok() && watched.code() != Code::kTimeout) {  // the exchange is lost
      token = 0;
      raw_sleep_ms(kGuestLookMs);
    }
    const bool is_there = member.is_there(), nobody = !is_there && alone.has_passed();
    if (is_there) alone = Deadline::in_ms(kPatienceMs);
    // Looked at after the members: their end has a reason, also if this process was stopped meanwhile.
    if (watched.ok() || nobody) look_for_end();
    std::string epoch;
    if (read_epoch(g_job.info, &epoch).ok() && epoch != g_job.info.epoch) end("its job was restarted");
    if (nobody) end("no member of its job has lived for 5 s");
  }
}

Status start_thread() {
  AllSignalsBlocked blocked;  // the thread inherits it
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int rc = ::pthread_create(&thread, &attributes, guest_main, nullptr);
  ::pthread_attr_destroy(&attributes);
  return rc == 0 ? Status() : Status::of(Code::kIo, rc, "cannot create the guest's thread (limit of processes?)");
}

}  // namespace

Status become_guest() {
  if (!g_job.inherited) SHADOWIB_TRY(fill_job_info(&g_job.info));
  int alive_lock = -1;
  SHADOWIB_TRY(enter(&g_job.info, &g_job.exchange, &alive_lock));
  fault_set_member(g_job.info.member);
  g_agent.alive_lock = alive_lock;
  tie_alive_lock_to_memory(alive_lock);
  if (Status s = start_thread(); !s.ok()) {
    release_alive_lock(alive_lock);
    return s;
  }
  g_job.guest_pid.store(raw_getpid());
  log_line(LogLevel::kInfo, "guest %u of job %s, epoch %s", g_job.info.member - kFirstGuest, g_job.info.job,
           g_job.info.epoch);
  return {};
}

}  // namespace shadowib
