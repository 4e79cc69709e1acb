#include "shadowib/objects/border.h"

#include <errno.h>
#include <time.h>

#include <algorithm>
#include <atomic>

#include "hooks/threads/stop.h"
#include "shadowib/base/lock.h"
#include "shadowib/objects/backend.h"

namespace shadowib {
namespace {

SpinLock g_border_lock;  // held while the backend is told, so that it hears of states in their order
ClusterState g_state;
GateState g_gates[kMaxBackendClusters];
std::uint32_t g_gates_told = 0;  // a bit for each cluster
std::atomic<bool> g_in_cluster{false};
bool g_frozen = false;
bool g_undecided = false;  // while it is frozen
bool g_loaded = false;     // a backend that is told of changes
std::atomic<void (*)(std::uint32_t, std::uint32_t)> g_needs_clc{nullptr};
std::atomic<void (*)(std::uint32_t)> g_cluster_lost{nullptr};
std::atomic<void (*)()> g_log_fills{nullptr};
std::atomic<void (*)(std::uint32_t, std::uint64_t, std::uint64_t)> g_gate_moved{nullptr};

int tell_backend() {
  if (g_backend.set_cluster == nullptr || g_backend.freeze_border == nullptr || g_backend.held_stamps == nullptr ||
      g_backend.border_facts == nullptr || g_backend.cluster_gone == nullptr)
    return EOPNOTSUPP;
  return g_backend.set_cluster(&g_state);
}

}  // namespace

int tell_cluster(const ClusterState& state) {
  Inside inside;
  SpinGuard guard(g_border_lock);
  g_state = state;
  g_in_cluster = true;
  return g_loaded ? tell_backend() : 0;
}

bool is_at_border() {
  Inside inside;
  SpinGuard guard(g_border_lock);
  return g_in_cluster && g_loaded;
}

void freeze_border(bool frozen) {
  Inside inside;
  SpinGuard guard(g_border_lock);
  if (g_frozen == frozen) return;
  g_frozen = frozen;
  g_undecided = false;
  if (g_in_cluster && g_loaded && g_backend.freeze_border != nullptr)
    g_backend.freeze_border(frozen ? kBorderFrozen : kBorderOpen);
}

void note_undecided_clc() {
  Inside inside;
  SpinGuard guard(g_border_lock);
  if (!g_frozen) return;
  g_undecided = true;
  if (g_in_cluster && g_loaded && g_backend.freeze_border != nullptr) g_backend.freeze_border(kBorderUndecided);
}

std::size_t held_stamps(HeldStamp* stamps, std::size_t capacity) {
  Inside inside;
  SpinGuard guard(g_border_lock);
  if (!g_in_cluster || !g_loaded || g_backend.held_stamps == nullptr) return 0;
  return g_backend.held_stamps(stamps, capacity);
}

BorderFacts border_facts() {
  Inside inside;
  SpinGuard guard(g_border_lock);
  BorderFacts facts{};
  if (g_in_cluster && g_loaded && g_backend.border_facts != nullptr) g_backend.border_facts(&facts);
  return facts;
}

int tell_cluster_gone(std::uint32_t cluster, std::uint32_t incarnation) {
  Inside inside;
  SpinGuard guard(g_border_lock);
  if (!g_in_cluster || cluster >= kMaxBackendClusters || cluster == g_state.index) return EINVAL;
  g_state.incarnations[cluster] = std::max(g_state.incarnations[cluster], incarnation + 1);
  if (!g_loaded) return 0;
  return g_backend.cluster_gone != nullptr ? g_backend.cluster_gone(cluster, incarnation) : EOPNOTSUPP;
}

int tell_gate(std::uint32_t cluster, const GateState& others) {
  Inside inside;
  SpinGuard guard(g_border_lock);
  if (!g_in_cluster || cluster >= kMaxBackendClusters || cluster == g_state.index) return EINVAL;
  g_gates[cluster] = others;
  g_gates_told |= 1u << cluster;
  if (!g_loaded) return 0;
  return g_backend.set_gate != nullptr ? g_backend.set_gate(cluster, &others) : EOPNOTSUPP;
}

std::uint64_t gate_earliest(std::uint32_t cluster) {
  Inside inside;
  SpinGuard guard(g_border_lock);
  return g_loaded && g_backend.gate_earliest != nullptr ? g_backend.gate_earliest(cluster) : kGateNothing;
}

void await_sending_again() {
  constexpr timespec kPause{0, 1'000'000};
  const auto is_owed = [] {
    if (!g_in_cluster.load(std::memory_order_relaxed)) return false;
    for (std::uint32_t i = 0; i < kMaxBackendClusters; ++i)
      if (gate_earliest(i) != kGateNothing) return true;
    return false;
  };
  while (is_owed()) ::nanosleep(&kPause, nullptr);
}

void tell_clc_collected(std::uint32_t sn) {
  Inside inside;
  SpinGuard guard(g_border_lock);
  if (g_in_cluster && g_loaded && g_backend.clc_collected != nullptr) g_backend.clc_collected(sn);
}

std::uint64_t logged_since(std::uint32_t cluster) {
  Inside inside;
  SpinGuard guard(g_border_lock);
  if (!g_loaded) return 0;
  return g_backend.logged_since != nullptr ? g_backend.logged_since(cluster) : kGateNothing;
}

void judge_cluster(std::uint32_t cluster, bool failed) {
  Inside inside;
  SpinGuard guard(g_border_lock);
  if (g_in_cluster && g_loaded && g_backend.judge_cluster != nullptr)
    g_backend.judge_cluster(cluster, failed ? 1 : 0);
}

void set_needs_clc_handler(void (*handler)(std::uint32_t, std::uint32_t)) { g_needs_clc = handler; }

void host_needs_clc(std::uint32_t cluster, std::uint32_t sn) {
  if (auto* const handler = g_needs_clc.load()) handler(cluster, sn);
}

void set_cluster_lost_handler(void (*handler)(std::uint32_t)) { g_cluster_lost = handler; }

void host_cluster_lost(std::uint32_t cluster) {
  if (auto* const handler = g_cluster_lost.load()) handler(cluster);
}

void set_gate_moved_handler(void (*handler)(std::uint32_t, std::uint64_t, std::uint64_t)) { g_gate_moved = handler; }

void host_gate_moved(std::uint32_t cluster, std::uint64_t earliest, std::uint64_t awaits) {
  if (auto* const handler = g_gate_moved.load()) handler(cluster, earliest, awaits);
}

void set_log_fills_handler(void (*handler)()) { g_log_fills = handler; }

void host_log_fills() {
  if (auto* const handler = g_log_fills.load()) handler();
}

int tell_loaded_backend() {
  Inside inside;
  SpinGuard guard(g_border_lock);
  if (g_in_cluster) {
    if (const int rc = tell_backend(); rc != 0) return rc;
    if (g_frozen) g_backend.freeze_border(kBorderFrozen);
    if (g_undecided) g_backend.freeze_border(kBorderUndecided);
    for (std::uint32_t i = 0; i < kMaxBackendClusters && g_backend.set_gate != nullptr; ++i)
      if ((g_gates_told >> i & 1) != 0) g_backend.set_gate(i, &g_gates[i]);
  }
  g_loaded = true;
  return 0;
}

void forget_border_backend() {
  Inside inside;
  SpinGuard guard(g_border_lock);
  g_loaded = g_frozen = g_undecided = false;
}

void forget_told_gates() {
  Inside inside;
  SpinGuard guard(g_border_lock);
  g_gates_told = 0;
}

void forget_border_after_fork() {
  g_border_lock.reset();
  g_loaded = g_frozen = g_undecided = false;
}

}  // namespace shadowib
