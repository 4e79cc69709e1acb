#include "hooks/agent/lost_clusters.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "hooks/agent/agent.h"
#include "hooks/agent/agent_state.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/job/cluster.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/member_record.h"
#include "hooks/job/protocol.h"
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

// Whether one of its members has neither its lock nor left in an orderly way, or clusters are just being recovered.
// An exchange that does not answer leaves that open, and requests wait.
bool has_failed(const std::string& cluster) {
  if (is_alive(job_paths(g_job.info.directory, g_job.info.job).renewing)) return true;
  std::vector<std::string> members;
  if (!g_job.exchange->list(std::string(g_job.info.epoch) + "/member", &members).ok()) return true;
  for (const std::string& member : members) {
    const std::string lock = alive_path(g_job.info.directory, g_job.info.job, g_job.info.epoch, member);
    if (is_alive(lock)) continue;
    const MemberRecord record = read_member_record(lock);
    if (record.cluster != cluster || record.left) continue;
    std::string text;
    bool gone = false;
    if (!g_job.exchange->get(std::string(g_job.info.epoch) + "/gone/" + member, &text, &gone).ok() || !gone)
      return true;
  }
  return false;
}

}  // namespace

// Wakes the agent as a signal does (threads/request_signals.h).
void note_lost_cluster(unsigned cluster) {
  const std::uint64_t one = 1;
  if (g_lost_asked.fetch_or(1u << cluster) != 0) return;
  [[maybe_unused]] const long n = ::syscall(SYS_write, g_agent.cancel.load(), &one, sizeof(one));
}

int lost_clusters_wait_ms() { return g_lost_asked.load() != 0 ? 0 : -1; }

void judge_lost_clusters() {
  const std::uint32_t asked = g_lost_asked.exchange(0);
  for (unsigned cluster = 0; cluster < federation::kMaxClusters; ++cluster) {
    const std::uint32_t bit = 1u << cluster;
    if ((asked & bit) == 0) continue;
    std::string name;
    const bool failed = !cluster_named(cluster, &name) || has_failed(name);
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
    if (cluster_named(cluster, &name) && !has_failed(name))
      note_return(cluster);
    else
      writer.value(cluster);
  }
  writer.end_array();
}

void forget_lost_clusters() {
  g_lost_asked = 0;
  g_lost_failed = 0;
}

}  // namespace shadowib
