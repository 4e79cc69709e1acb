#include "hooks/agent/own_checkpoints.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/best_interval.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/agent/start_command.h"
#include "hooks/job/member_record.h"
#include "hooks/job/protocol.h"
#include "hooks/threads/request_signals.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

// All members may have got the signal: the one with the lowest index among the living starts, the others if it does
// not.
constexpr std::int64_t kOthersNs = 1'000'000'000;
// Who is to be ended and is alive after a checkpoint has begun: it was another, or was refused. And a command that
// comes upon another checkpoint ends without one.
constexpr std::int64_t kAgainNs = 5'000'000'000;
constexpr int kMostRounds = 3, kMostCommands = 12;

std::int64_t g_interval_ns = 0;  // 0: none
std::int64_t g_next_interval_ns = 0;
double g_mtbf_s = 0;                // of the job; 0: the interval is not chosen here
double g_pause_s = 0;               // average of checkpoints so far, the latest counting half; 0: there was none
constexpr double kFirstPauseS = 1;  // until there is one
int g_timeout_ms = 60000;

// A CLC that another cluster has asked for.
struct Room {
  bool asked = false;
  std::int64_t due_ns = 0;
  std::int64_t last_clc_ns = 0;  // 0: there was none
} g_room;

// What signals have asked for, and nobody has begun.
struct Asked {
  bool anything = false, kill = false;
  std::int64_t due_ns = 0;          // when this member starts
  std::uint64_t requests_seen = 0;  // checkpoints begun before
  int rounds = 0, commands = 0;
} g_asked;

// `of_cluster`: among the members of this one's cluster.
bool lowest_alive(bool of_cluster = false) {
  for (std::uint32_t index = 0; index < g_job.info.member; ++index) {
    const std::string lock =
        alive_path(g_job.info.directory, g_job.info.job, g_job.info.epoch, std::to_string(index));
    if (of_cluster && read_member_record(lock).cluster != own_cluster().name) continue;
    if (is_alive(lock)) return false;
  }
  return true;
}

std::int64_t turn(std::int64_t then) { return lowest_alive() ? then : then + kOthersNs; }

// `cluster`: its CLC alone; "": the whole job.
void start(bool kill, const char* why, const char* cluster = "") {
  if (Status s = start_checkpoint_command(kill, g_timeout_ms, -1, cluster); !s.ok())
    log_line(LogLevel::kWarn, "%s: %s", why, s.text());
}

void choose_interval(std::int64_t now) {
  const double interval_s = best_interval_s(g_pause_s > 0 ? g_pause_s : kFirstPauseS, g_mtbf_s);
  g_interval_ns = std::max<std::int64_t>(static_cast<std::int64_t>(interval_s * 1e9), 1'000'000);
  g_next_interval_ns = now + g_interval_ns;
}

void start_periodic(std::int64_t now) {
  if (g_interval_ns == 0 || now < g_next_interval_ns) return;
  g_next_interval_ns = now + g_interval_ns;
  if (lowest_alive(is_in_cluster())) start(false, "periodic checkpoint", own_cluster().name);
}

void take_signals(std::int64_t now) {
  const SignalledRequest request = take_signalled_request();
  if (!request.checkpoint) return;
  if (!g_asked.anything || (request.kill && !g_asked.kill)) {
    g_asked = {true, false, turn(now), g_agent.last_request, 0, 0};
    log_line(LogLevel::kInfo, "a signal asks for a checkpoint%s", request.kill ? ", and for the end" : "");
  }
  g_asked.kill |= request.kill;
}

// Somebody has begun one since.
void look_what_has_begun(std::int64_t now) {
  if (!g_asked.anything || g_agent.last_request == g_asked.requests_seen) return;
  if (!g_asked.kill) {
    g_asked = {};
    return;
  }
  g_asked.requests_seen = g_agent.last_request;
  ++g_asked.rounds;
  g_asked.due_ns = turn(now + kAgainNs);
}

void start_signalled(std::int64_t now) {
  if (!g_asked.anything || now < g_asked.due_ns) return;
  if (g_asked.rounds == kMostRounds || g_asked.commands++ == kMostCommands) {
    log_line(LogLevel::kError, "a signal has asked for a checkpoint, and none of %d was one; the job goes on",
             std::max(g_asked.rounds, g_asked.commands - 1));
    g_asked = {};
    return;
  }
  g_asked.due_ns = turn(now + kAgainNs);
  start(g_asked.kill, "checkpoint that a signal has asked for");
}

// One that is refused is tried again after the interval.
void start_for_room(std::int64_t now) {
  if (!g_room.asked || now < g_room.due_ns) return;
  g_room.due_ns = now + own_cluster().log_interval_ns;
  if (lowest_alive(true)) start(false, "checkpoint for another cluster's log", own_cluster().name);
}

int ms_until(std::int64_t then, std::int64_t now) {
  return static_cast<int>(std::clamp<std::int64_t>((then - now) / 1000000 + 1, 0, INT_MAX));
}

}  // namespace

void begin_own_checkpoints() {
  g_asked = {};
  g_room = {};
  if (const char* seconds = std::getenv("SHADOWIB_TIMEOUT"); seconds != nullptr && std::atof(seconds) > 0)
    g_timeout_ms = static_cast<int>(std::min(std::atof(seconds) * 1000, 2e9));
  const char* mtbf = std::getenv("SHADOWIB_MTBF");
  if (const char* seconds = std::getenv("SHADOWIB_INTERVAL");
      seconds != nullptr && std::strcmp(seconds, "auto") == 0) {
    g_mtbf_s = mtbf != nullptr ? std::max(std::atof(mtbf), 0.0) : 0;
    if (g_mtbf_s > 0) choose_interval(monotonic_ns());
  } else if (seconds != nullptr) {
    g_interval_ns = static_cast<std::int64_t>(std::atof(seconds) * 1e9);
    g_next_interval_ns = monotonic_ns() + g_interval_ns;
  }
}

void note_checkpoint_pause(std::int64_t pause_ns) {
  if (g_mtbf_s <= 0) return;
  const double pause_s = static_cast<double>(pause_ns) / 1e9;
  g_pause_s = g_pause_s > 0 ? (g_pause_s + pause_s) / 2 : pause_s;
  choose_interval(monotonic_ns());
  log_line(LogLevel::kInfo, "checkpoints stop the program for %.3f s: the next one is in %.3f s", g_pause_s,
           static_cast<double>(g_interval_ns) / 1e9);
}

void note_room_request() {
  if (g_room.asked || own_cluster().log_interval_ns == 0) return;
  const std::int64_t now = monotonic_ns();
  g_room.asked = true;
  g_room.due_ns = g_room.last_clc_ns == 0 ? now : std::max(now, g_room.last_clc_ns + own_cluster().log_interval_ns);
}

void restart_interval() {
  g_room = {};
  g_room.last_clc_ns = monotonic_ns();
  if (g_interval_ns != 0) g_next_interval_ns = monotonic_ns() + g_interval_ns;
}

int own_checkpoint_timeout_ms() { return g_timeout_ms; }

int own_checkpoint_wait_ms() {
  const std::int64_t now = monotonic_ns();
  int wait = -1;
  if (g_interval_ns != 0) wait = ms_until(g_next_interval_ns, now);
  if (g_room.asked && (wait < 0 || g_room.due_ns < now + std::int64_t{wait} * 1000000))
    wait = ms_until(g_room.due_ns, now);
  if (g_asked.anything && (wait < 0 || g_asked.due_ns < now + std::int64_t{wait} * 1000000))
    wait = ms_until(g_asked.due_ns, now);
  return wait;
}

void start_own_checkpoint() {
  const std::int64_t now = monotonic_ns();
  look_what_has_begun(now);
  take_signals(now);
  start_signalled(now);
  start_periodic(now);
  start_for_room(now);
}

void forget_signalled_requests() {
  drop_signalled_request();
  g_asked = {};
  g_room = {};
  g_room.last_clc_ns = monotonic_ns();
}

}  // namespace shadowib
