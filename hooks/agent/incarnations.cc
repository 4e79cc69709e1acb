#include "hooks/agent/incarnations.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "hooks/agent/agent_state.h"
#include "hooks/agent/own_cluster.h"
#include "hooks/job/recovery.h"
#include "hooks/raw/tasks.h"
#include "shadowib/base/log.h"

namespace shadowib {
namespace {

static_assert(kManyClusters < 64);
std::atomic<std::uint64_t> g_wired{0};  // a bit for each cluster, and one for multicast groups

// As the end of a process whose host is lost: nobody is told.
[[noreturn]] void end_of_incarnation() {
  log_line(LogLevel::kWarn, "cluster %s has gone back: this process, of its incarnation %u, ends", own_cluster().name,
           own_cluster().running.incarnations[own_cluster().running.index]);
  ::syscall(SYS_kill, raw_getpid(), SIGKILL);
  for (;;) ::syscall(SYS_exit_group, 128 + SIGKILL);  // the first process of a pid namespace is still here
}

}  // namespace

void hear_incarnations() {
  IncarnationWord word;
  if (const Status s = read_word(*g_job.exchange, g_job.info.epoch, &word); !s.ok()) {
    log_line(LogLevel::kDebug, "the word of a recovery: %s", s.text());
    return;
  }
  if (!take_word(word)) end_of_incarnation();
}

Status note_wired(unsigned cluster) {
  const std::uint64_t bit = std::uint64_t{1} << cluster;
  if (!is_in_cluster() || cluster == own_cluster().running.index || (g_wired.load() & bit) != 0) return {};
  // The exchange first: whoever sees the bit takes the key for granted.
  SHADOWIB_TRY(g_job.exchange->publish(wired_key(g_job.info.epoch, own_cluster().running.index, cluster),
                                       encode_fields({{"member", std::to_string(g_job.info.member)}})));
  g_wired.fetch_or(bit);
  return {};
}

Status note_wired_by_multicast() { return note_wired(kManyClusters); }

void forget_wired() { g_wired = 0; }

}  // namespace shadowib
