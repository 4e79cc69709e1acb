#include "hooks/agent/round_settle.h"

#include <algorithm>
#include <cinttypes>
#include <string>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/loader_thread.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/job/phase.h"
#include "hooks/raw/tasks.h"
#include "hooks/threads/fault.h"
#include "hooks/threads/stop.h"
#include "shadowib/base/guard.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr int kSettleTries = 5;
constexpr int kRehearsals = 20;
constexpr int kRehearsalMs = 50;
constexpr int kMostAsleep = 100;  // rehearsals in which nobody who holds a lock could have run
constexpr int kLetGoMs = 20;
constexpr int kLookupMs = 10;  // more with each attempt: a thread may have no processor while it has a function bound

// Whether a reload would come to its end while these threads stand still.
Status rehearse_reload() {
  if (!guarded(Guard::kRehearseReload)) return {};
  if (const std::uint32_t threads = parked_in_lookup(); threads != 0)
    return Status::of(Code::kTimeout, 0, "%u stopped thread(s) of the program are having a function bound", threads);
  return loader_rehearse(kRehearsalMs);
}

// Whether a thread of this process, the caller apart, runs, has no processor, or waits for a disk.
bool is_busy() {
  struct Look {
    int self;
    bool busy;
  } look{raw_gettid(), false};
  const auto visit = [](int tid, void* arg) {
    auto* seen = static_cast<Look*>(arg);
    const char state = tid == seen->self ? 'S' : task_state(tid);
    seen->busy = state == 'R' || state == 'D';
    return !seen->busy;
  };
  for_each_task(visit, &look);
  return look.busy;
}

}  // namespace

// A thread inside the shim may wait for a lock that a stopped one holds (fork takes all of malloc's). So those are
// let go a few times, and the thread gets it. In all less than what is left, in time to say which thread it was.
Status RoundSettle::stop_all() {
  const int all_ms = std::min(messages_.left_ms() / 4, 10000);
  const std::int64_t kernel_until_ns = monotonic_ns() + messages_.left_ms() / 8 * 5 * std::int64_t{1'000'000};
  const auto stop_within = [&](int ms) {
    const std::int64_t kernel_ms = std::max<std::int64_t>(0, (kernel_until_ns - monotonic_ns()) / 1'000'000);
    return stop_threads(ms, static_cast<int>(kernel_ms), request_.deadline_ns + RoundRequest::kLateNs);
  };
  for (const int part_ms : {all_ms / 8, all_ms / 4}) {
    Status status = stop_within(part_ms);
    if (status.code() != Code::kRefused) return status;
    raw_sleep_ms(kLetGoMs);
  }
  return stop_within(all_ms);
}

Status RoundSettle::stop() {
  SHADOWIB_TRY(fault_point(Phase::kStopping));
  if (g_agent.participant != nullptr) g_agent.participant->stopping();
  if (is_in_cluster()) close_border(request_.is_clc());
  for (int attempt = 0;; ++attempt) {
    SHADOWIB_TRY(stop_all());
    Status rehearsal = rehearse_reload();
    if (rehearsal.ok()) break;
    release_threads();
    if (attempt == kRehearsals)
      return Status::of(Code::kRefused, 0, "pid %d: %.250s in %d attempts", raw_getpid(), rehearsal.text(), attempt);
    SHADOWIB_TRY(await_holder());
    raw_sleep_ms(attempt * kLookupMs);
  }
  stopped_at_ns_ = monotonic_ns();
  return {};
}

// The program runs, and its thread lets go of the lock as soon as it gets there. It may load for long, or have no
// processor, and the whole machine may stand still. So only time in which all threads sleep counts against it.
Status RoundSettle::await_holder() {
  const std::int64_t until_ns = monotonic_ns() + messages_.left_ms() / 4 * 3 * std::int64_t{1'000'000};
  for (int asleep = 0;;) {
    const Status status = loader_rehearse(kRehearsalMs);
    if (status.code() != Code::kTimeout) return status;
    if (!is_busy()) ++asleep;
    if (asleep == kMostAsleep || monotonic_ns() > until_ns)
      return Status::of(Code::kTimeout, 0, "pid %d: %.250s; nor once all threads ran again", raw_getpid(),
                        status.text());
    SHADOWIB_TRY(messages_.check_others());
  }
}

Status RoundSettle::settle_once(int attempt) {
  const std::string prefix = messages_.key("s/" + std::to_string(attempt));
  SettleContext context{};
  context.job = &g_job.info;
  context.exchange = g_job.exchange;
  context.prefix = prefix.c_str();
  context.abort_key = messages_.abort_key().c_str();
  context.members = request_.members.data();
  context.member_count = static_cast<std::uint32_t>(request_.members.size());
  context.again_key = again_key(attempt);
  context.deadline_ns = request_.deadline_ns;
  context.one_cluster = request_.is_clc();
  if (is_in_cluster() && !request_.is_clc()) context.let_held = let_held;
  return g_agent.participant != nullptr ? g_agent.participant->settle(context) : Status();
}

// One member asks for all: the others need not read each other's reasons.
Status RoundSettle::ask_for_another(int attempt, const Status& why) {
  const Status status = g_job.exchange->claim(again_key(attempt), messages_.me() + " " + why.text());
  return status.code() == Code::kBusy ? Status() : status;
}

std::string RoundSettle::again_key(int attempt) const { return messages_.key("again/" + std::to_string(attempt)); }

Status RoundSettle::settle() {
  for (int attempt = 0;; ++attempt) {
    const std::string number = std::to_string(attempt);
    Status status = settle_once(attempt);
    if (status.ok()) settle_ns_ = monotonic_ns() - stopped_at_ns_;
    if (!status.ok() && status.code() != Code::kTimeout) return status;
    if (!status.ok()) SHADOWIB_TRY(ask_for_another(attempt, status));
    std::string asked;  // "MEMBER REASON" of the first who has asked for another try
    bool again = false;
    SHADOWIB_TRY(messages_.barrier_and_get("40." + number, again_key(attempt), &asked, &again));
    if (!again) return {};
    if (attempt + 1 == kSettleTries) {
      const std::size_t blank = std::min(asked.find(' '), asked.size() - 1);
      return Status::of(Code::kRefused, 0, "member %.20s does not settle in %d tries: %.250s",
                        asked.substr(0, blank).c_str(), kSettleTries, asked.c_str() + blank + 1);
    }
    log_line(LogLevel::kInfo, "checkpoint %" PRIu64 ": try %d: %s; running on for a moment", request_.number,
             attempt + 1, status.ok() ? "settled, but another member is not" : status.text());
    SHADOWIB_TRY(run_a_moment(attempt));
  }
}

Status RoundSettle::run_a_moment(int attempt) {
  if (is_in_cluster()) open_border();
  if (g_agent.participant != nullptr) g_agent.participant->resume();
  release_threads();
  raw_sleep_ms(20);
  SHADOWIB_TRY(messages_.barrier("41." + std::to_string(attempt)));  // nobody stops while others still settle
  SHADOWIB_TRY(stop());
  return messages_.barrier("42." + std::to_string(attempt));
}

}  // namespace shadowib
