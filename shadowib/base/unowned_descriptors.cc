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
constinit thread_local std::uint32_t t_depth_of_having __attribute__((tls_model("initial-exec"))) = 0;

// Waits until the word is `wanted` at most. False if that has taken too long.
bool await_at_most(const std::atomic<std::uint32_t>& word, std::uint32_t wanted, std::int64_t longest_ms) {
  std::int64_t deadline = 0;
  for (std::uint32_t now; (now = word.load()) > wanted;) {
    const std::int64_t time = monotonic_ns();
    if (deadline == 0) deadline = time + longest_ms * 1'000'000;
    if (time >= deadline) return false;
    futex_wait(&word, now, deadline - time);
  }
  return true;
}

void before_fork() {
  g_forks.fetch_add(1);
  g_forking.fetch_add(1);
  await_at_most(g_having, t_depth_of_having != 0 ? 1 : 0, kLongestMs);  // a handler of a signal may fork
}

void in_parent() {
  g_forking.fetch_sub(1);
  futex_wake(&g_forking, 1 << 30);
}

void in_child() {
  g_having.store(t_depth_of_having != 0 ? 1 : 0);
  g_forking.store(0);
}

// First of all, so that what other handlers do before a fork is done when this one waits.
__attribute__((constructor)) void register_fork_handlers() { ::pthread_atfork(before_fork, in_parent, in_child); }

}  // namespace

void begin_unowned_descriptors() {
  if (t_depth_of_having++ != 0) return;
  for (;;) {
    // Either this sees the fork, or that sees us.
    g_having.fetch_add(1);
    const std::uint32_t forks = g_forks.load();
    if (g_forking.load() == 0 || g_given_up.load() == forks) return;
    g_having.fetch_sub(1);
    futex_wake(&g_having, 1 << 30);
    if (!await_at_most(g_forking, 0, kLongestForForksMs)) g_given_up.store(forks);
  }
}

void end_unowned_descriptors() {
  if (--t_depth_of_having != 0) return;
  g_having.fetch_sub(1);
  if (g_forking.load() != 0) futex_wake(&g_having, 1 << 30);
}

}  // namespace shadowib
