#include "hooks/agent/log_room.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "hooks/agent/agent.h"
#include "hooks/agent/agent_state.h"
#include "hooks/agent/join.h"
#include "hooks/agent/own_checkpoints.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/job/cluster.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

std::atomic<bool> g_noted{false};  // until the log has room again
std::int64_t g_next_ns = 0;        // nobody is asked before

// Two that ask at once may take the same number: the cluster hears of it all the same.
void ask(unsigned cluster) {
  const JobInfo& job = g_job.info;
  const std::string name = room_name(cluster);
  const std::uint64_t n = latest_request(g_job.exchange, job.epoch, name.c_str()) + 1;
  const Status asked =
      g_job.exchange->publish(std::string(job.epoch) + "/control/" + name, encode_fields({{"n", std::to_string(n)}}));
  if (!asked.ok()) log_line(LogLevel::kWarn, "asking cluster %u for a checkpoint: %s", cluster, asked.text());
}

}  // namespace

// Wakes the agent as a signal does (threads/request_signals.h).
void note_log_filling() {
  const std::uint64_t one = 1;
  if (g_noted.load(std::memory_order_relaxed) || g_noted.exchange(true)) return;
  [[maybe_unused]] const long n = ::syscall(SYS_write, g_agent.cancel.load(), &one, sizeof(one));
}

int log_room_wait_ms() {
  if (!g_noted.load() || own_cluster().log_interval_ns == 0) return -1;
  return static_cast<int>(std::max<std::int64_t>(g_next_ns - monotonic_ns(), 0) / 1'000'000 + 1);
}

void ask_for_log_room() {
  const std::int64_t now = monotonic_ns();
  if (!g_noted.load() || own_cluster().log_interval_ns == 0 || now < g_next_ns || g_agent.participant == nullptr)
    return;
  if (!g_agent.participant->log_fills()) {
    g_noted = false;
    return;
  }
  g_next_ns = now + own_cluster().log_interval_ns;
  log_line(LogLevel::kInfo, "the log of messages to other clusters gets full: they are asked for checkpoints");
  for (unsigned cluster = 0; cluster < federation::kMaxClusters; ++cluster)
    if (cluster != own_cluster().running.index && g_agent.participant->logged_since(cluster) != 0) ask(cluster);
}

void forget_log_room() {
  g_noted = false;
  g_next_ns = 0;
}

}  // namespace shadowib
