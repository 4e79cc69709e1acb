#include "shadowib/base/unowned_descriptors.h"

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

// A fork waits longer, for calls that are short; these wait for what a checkpoint may have stopped.
constexpr std::int64_t kLongestMs = 2000, kLongestForForksMs = 200;

std::atomic<std::uint32_t> g_having{0};    // threads that have such descriptors
std::atomic<std::uint32_t> g_forking{0};   // threads between their handler before a fork and the one after it
std::atomic<std::uint32_t> g_forks{0};     // begun so far
std::atomic<std::uint32_t> g_given_up{0};  // of g_forks, when somebody had waited long enough
std::atomic<bool> g_without_end{false};    // for tests
struct OwnPart {
  std::uint32_t depth = 0;  // > 0: counted in g_having
  bool forks = false;       // counted in g_forking
};
constinit thread_local OwnPart t_own __attribute__((tls_model("initial-exec")));

// A handler of a signal may fork at any step of ours and return in the child, where nobody is counted any more.
void count_down(std::atomic<std::uint32_t>* word) {
  for (std::uint32_t now = word->load(); now > 0 && !word->compare_exchange_weak(now, now - 1);) {
  }
}

// Waits until the word is `wanted` at most. False if that has taken too long.
bool await_at_most(const std::atomic<std::uint32_t>& word, std::uint32_t wanted, std::int64_t longest_ms) {
  std::int64_t deadline = 0;
  for (std::uint32_t now; (now = word.load()) > wanted;) {
    const std::int64_t time = monotonic_ns();
    if (deadline == 0) deadline = time + longest_ms * 1'000'000;
    if (time >= deadline) {
      if (!g_without_end.load()) return false;
      deadline = time + longest_ms * 1'000'000;
    }
    futex_wait(&word, now, deadline - time);
  }
  return true;
}

void before_fork() {
  t_own.forks = true;
  g_forks.fetch_add(1);
  g_forking.fetch_add(1);
  await_at_most(g_having, t_own.depth != 0 ? 1 : 0, kLongestMs);
}

void in_parent() {
  count_down(&g_forking);
  t_own.forks = false;
  futex_wake(&g_forking, 1 << 30);
}

void in_child() {
  g_having.store(t_own.depth != 0 ? 1 : 0);
  g_forking.store(0);
  t_own.forks = false;
}

// Before our other handlers, so that in a child they may begin and end.
__attribute__((constructor(102))) void register_fork_handlers() {
  ::pthread_atfork(before_fork, in_parent, in_child);
}

}  // namespace

void wait_for_forks_without_end(bool without_end) { g_without_end.store(without_end); }

void begin_unowned_descriptors() {
  if (t_own.depth == 0)
    for (bool waited = t_own.forks;; waited = true) {
      // Either this sees the fork, or that sees us.
      g_having.fetch_add(1);
      const std::uint32_t forks = g_forks.load();
      if (waited || g_forking.load() == 0 || g_given_up.load() == forks) break;
      count_down(&g_having);
      futex_wake(&g_having, 1 << 30);
      if (!await_at_most(g_forking, 0, kLongestForForksMs)) g_given_up.store(forks);
    }
  ++t_own.depth;
}

void end_unowned_descriptors() {
  if (--t_own.depth != 0) return;
  count_down(&g_having);
  if (g_forking.load() != 0) futex_wake(&g_having, 1 << 30);
}

}  // namespace shadowib
