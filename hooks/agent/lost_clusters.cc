#include "hooks/agent/lost_clusters.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "hooks/agent/agent.h"
#include "hooks/agent/agent_state.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/job/cluster.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/member_record.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

static_assert(federation::kMaxClusters <= 32);
std::atomic<std::uint32_t> g_lost_asked{0};  // a bit for each cluster
std::uint32_t g_lost_failed = 0;

bool cluster_named(unsigned index, std::string* name) {
  std::vector<std::string> names;
  if (!g_job.exchange->list(cluster_key(g_job.info.epoch, ""), &names).ok()) return false;
  for (const std::string& each : names) {
    std::string text;
    bool found = false;
    Fields fields;
    if (!g_job.exchange->get(cluster_key(g_job.info.epoch, each), &text, &found).ok() || !found ||
        !decode_fields(text, &fields) || field_number(fields, "index") != index)
      continue;
    *name = each;
    return true;
  }
  return false;
}

enum class Cluster : std::uint8_t {
  kFailed,  // it can go back, or nobody can tell
  kEnded,   // members have ended in an orderly way, and none has died
  kLives,   // none of them has ended: one that takes no connection is about to, perhaps
};

// Failed is a cluster if one of its members has neither its lock nor left in an orderly way, or if clusters are just
// being recovered. An exchange that does not answer leaves that open, and requests wait.
Cluster look_at(const std::string& cluster) {
  if (is_alive(job_paths(g_job.info.directory, g_job.info.job).renewing)) return Cluster::kFailed;
  std::vector<std::string> members;
  if (!g_job.exchange->list(std::string(g_job.info.epoch) + "/member", &members).ok()) return Cluster::kFailed;
  bool any_left = false;
  for (const std::string& member : members) {
    const std::string lock = alive_path(g_job.info.directory, g_job.info.job, g_job.info.epoch, member);
    const bool is_there = is_alive(lock);
    const MemberRecord record = read_member_record(lock);
    if (record.cluster != cluster) continue;
    std::string text;
    bool left = record.left;
    if (!is_there && !left &&
        (!g_job.exchange->get(std::string(g_job.info.epoch) + "/gone/" + member, &text, &left).ok() || !left))
      return Cluster::kFailed;
    any_left = any_left || left;
  }
  return any_left ? Cluster::kEnded : Cluster::kLives;
}

// A killed process closes its connections before it gives back its lock, and may wait for a processor in between.
constexpr std::int64_t kEndsWithinNs = 10'000'000'000, kLookAgainNs = 200'000'000;
std::int64_t g_first_look[federation::kMaxClusters] = {};  // at a cluster that lives; 0: none
std::int64_t g_next_look = 0;

}  // namespace

// Wakes the agent as a signal does (threads/request_signals.h).
void note_lost_cluster(unsigned cluster) {
  const std::uint64_t one = 1;
  if (g_lost_asked.fetch_or(1u << cluster) != 0) return;
  [[maybe_unused]] const long n = ::syscall(SYS_write, g_agent.cancel.load(), &one, sizeof(one));
}

int lost_clusters_wait_ms() {
  if (g_lost_asked.load() == 0) return -1;
  return static_cast<int>(std::clamp<std::int64_t>((g_next_look - monotonic_ns() + 999'999) / 1'000'000, 0, 1000));
}

void judge_lost_clusters(std::int64_t now) {
  if (now < g_next_look) return;
  g_next_look = 0;
  const std::uint32_t asked = g_lost_asked.exchange(0);
  for (unsigned cluster = 0; cluster < federation::kMaxClusters; ++cluster) {
    const std::uint32_t bit = 1u << cluster;
    if ((asked & bit) == 0) continue;
    std::string name;
    const Cluster found = cluster_named(cluster, &name) ? look_at(name) : Cluster::kFailed;
    std::int64_t& first = g_first_look[cluster];
    if (found == Cluster::kLives && first == 0) first = now;
    if (found == Cluster::kLives && now - first < kEndsWithinNs) {
      g_lost_asked.fetch_or(bit);
      g_next_look = now + kLookAgainNs;
      continue;
    }
    first = 0;
    const bool failed = found == Cluster::kFailed;
    if (failed && (g_lost_failed & bit) == 0)
      log_line(LogLevel::kWarn,
               "cluster %s has failed: requests to it wait until it has gone back (shadowib restart --job %s), or "
               "until the job ends",
               name.empty() ? std::to_string(cluster).c_str() : name.c_str(), g_job.info.job);
    g_lost_failed = failed ? g_lost_failed | bit : g_lost_failed & ~bit;
    if (g_agent.participant != nullptr) g_agent.participant->judge_cluster(cluster, failed);
  }
}

void note_return(unsigned cluster) { g_lost_failed &= ~(1u << cluster); }

void describe_lost_clusters(JsonWriter& writer) {
  writer.key("waits_for").begin_array();
  for (unsigned cluster = 0; cluster < federation::kMaxClusters; ++cluster) {
    if ((g_lost_failed >> cluster & 1) == 0) continue;
    std::string name;  // one may be judged behind the word by which it goes back, and come back since
    if (cluster_named(cluster, &name) && look_at(name) != Cluster::kFailed)
      note_return(cluster);
    else
      writer.value(cluster);
  }
  writer.end_array();
}

void forget_lost_clusters() {
  g_lost_asked = 0;
  g_lost_failed = 0;
  g_next_look = 0;
  std::fill(std::begin(g_first_look), std::end(g_first_look), 0);
}

}  // namespace shadowib
