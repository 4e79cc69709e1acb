#include "hooks/agent/forced_clc.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/own_checkpoints.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/agent/start_command.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

constexpr std::int64_t kMs = 1'000'000;
// Between two looks at the cluster's turn while a checkpoint is under way.
constexpr std::int64_t kLookNs = 20 * kMs;
// After a command has been started: it takes its turn within that time, or has found another one's. Doubled with each
// that has brought no CLC.
constexpr std::int64_t kFirstPauseNs = 300 * kMs, kLongestPauseNs = 2000 * kMs;

std::atomic<bool> g_first_asked{false};

// Messages that wait. since_ns 0: none does.
struct Waiting {
  std::int64_t since_ns = 0, due_ns = 0, pause_ns = kFirstPauseNs;
} g_waiting;
char g_refusal[400] = "";  // of the latest CLC, if there was none since

bool any_waits() {
  const OwnCluster& cluster = own_cluster();
  std::vector<federation::Stamp> held;
  if (cluster.running.sn == 0 && g_waiting.since_ns != 0) return true;  // posted before CLC 1
  if (g_agent.participant != nullptr) g_agent.participant->held_at_border(&held);
  return std::any_of(held.begin(), held.end(), [&cluster](const federation::Stamp& stamp) {
    return federation::judge(cluster.policy, cluster.running, stamp) == federation::Arrival::kHold;
  });
}

bool clc_under_way() {
  const JobInfo& job = g_job.info;
  return is_alive(alive_path(job.directory, job.job, job.epoch, turn_lock(own_cluster().running.index)));
}

bool held_for_too_long(std::int64_t now) {
  return static_cast<double>(now - g_waiting.since_ns) / 1e9 >= own_cluster().hold_s;
}

void give_up_waiting() {
  log_line(
      LogLevel::kWarn,
      "cluster %s: messages of other clusters have waited %.1f s for a checkpoint, and are delivered without: %s",
      own_cluster().name, static_cast<double>(monotonic_ns() - g_waiting.since_ns) / 1e9,
      g_refusal[0] != '\0' ? g_refusal : "none came about");
  let_through();
  g_waiting = Waiting();
}

}  // namespace

// Wakes the agent as a signal does (threads/request_signals.h).
void note_held_message() {
  const std::uint64_t one = 1;
  if (g_first_asked.exchange(true)) return;
  [[maybe_unused]] const long n = ::syscall(SYS_write, g_agent.cancel.load(), &one, sizeof(one));
}

int forced_clc_wait_ms() {
  constexpr int kUndecidedMs = 500;
  if (is_undecided()) return kUndecidedMs;
  if (g_first_asked.load()) return 0;
  if (g_waiting.since_ns == 0) return -1;
  const std::int64_t left = g_waiting.due_ns - monotonic_ns();
  return static_cast<int>(std::max<std::int64_t>(left, 0) / kMs + 1);
}

void start_forced_clc() {
  const std::int64_t now = monotonic_ns();
  settle_undecided();
  if (is_undecided()) return;
  if (g_first_asked.exchange(false) && g_waiting.since_ns == 0) {
    g_waiting = Waiting();
    g_waiting.since_ns = g_waiting.due_ns = now;
  }
  if (g_waiting.since_ns == 0 || now < g_waiting.due_ns) return;
  if (!any_waits()) {
    g_waiting = Waiting();
    return;
  }
  if (clc_under_way()) {
    g_waiting.due_ns = now + kLookNs;
    return;
  }
  if (held_for_too_long(now)) return give_up_waiting();
  if (const Status s = start_checkpoint_command(false, own_checkpoint_timeout_ms(), -1, own_cluster().name); !s.ok())
    log_line(LogLevel::kWarn, "checkpoint that a message of another cluster waits for: %s", s.text());
  g_waiting.due_ns = now + g_waiting.pause_ns;
  g_waiting.pause_ns = std::min(2 * g_waiting.pause_ns, kLongestPauseNs);
}

bool waits_for_first_clc() { return g_first_asked.load() || g_waiting.since_ns != 0; }

void note_clc(bool committed, const Status& status) {
  std::snprintf(g_refusal, sizeof(g_refusal), "%s", committed ? "" : status.text());
  if (!committed) return;
  g_waiting = Waiting();
  g_first_asked = true;  // messages that came meanwhile may need another one
}

void describe_forced_clc(JsonWriter& writer) {
  const std::int64_t waited = g_waiting.since_ns == 0 ? 0 : monotonic_ns() - g_waiting.since_ns;
  writer.member("held_ms", waited / kMs);
  if (g_waiting.since_ns != 0 && g_refusal[0] != '\0') writer.member("refusal", g_refusal);
}

void forget_forced_clc() {
  g_first_asked = false;
  g_waiting = Waiting();
  g_refusal[0] = '\0';
}

}  // namespace shadowib
