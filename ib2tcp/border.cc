#include "ib2tcp/border.h"

#include <errno.h>
#include <time.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/queue_pair.h"

namespace shadowib::ib2tcp {

Border::Border(unsigned index) {
  running_.index = index;
  running_.depends = running_.incarnations = oldest_alive_ = told_incarnations_ = delivered_ = trimmed_ =
      federation::PerCluster(federation::kMaxClusters);
}

void Border::take(const ClusterState& state) {
  running_.sn = state.sn;
  policy_ = static_cast<federation::Policy>(state.policy);
  std::copy_n(state.depends, kMaxBackendClusters, running_.depends.of.begin());
  std::copy_n(state.incarnations, kMaxBackendClusters, running_.incarnations.of.begin());
  told_incarnations_ = running_.incarnations;
  running_.incarnations.raise(oldest_alive_);
  running_.depends[running_.index] = 0;
  forget_past();
  if (past_.empty() || past_.back().sn != state.sn) past_.push_back({state.sn, running_.depends});
  past_.back().depends = running_.depends;
  past_.back().depends[running_.index] = state.sn;
}

void Border::note_gone(unsigned cluster, federation::Incarnation incarnation) {
  oldest_alive_[cluster] = std::max(oldest_alive_[cluster], incarnation + 1);
  running_.incarnations.raise(oldest_alive_);
}

// Requests wait in their queues for as long as they like, so that the oldest of them says what is needed.
void Border::forget_past() {
  if (past_.size() < 2) return;
  federation::Sn oldest = running_.sn;
  g_engine->qps.for_each([&](Qp& qp) { oldest = std::min(oldest, qp.oldest_sn()); });
  auto last = std::find_if(past_.begin(), past_.end(), [oldest](const Past& past) { return past.sn > oldest; });
  if (last - past_.begin() > 1) past_.erase(past_.begin(), last - 1);
}

const federation::PerCluster& Border::dependencies_under(federation::Sn sn) const {
  auto later = std::find_if(past_.begin(), past_.end(), [sn](const Past& past) { return past.sn > sn; });
  return later == past_.begin() ? later->depends : (later - 1)->depends;
}

void Border::ask_for_first() const { g_host->needs_clc(running_.index, 1); }

namespace {

std::uint64_t time_by(clockid_t clock) {
  timespec now;
  ::clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

std::uint64_t Border::stamp() { return last_stamp_ = std::max(last_stamp_ + 1, time_by(CLOCK_MONOTONIC)); }

void Border::note_lost(unsigned cluster) {
  logged_since_[cluster] = std::max(logged_since_[cluster], time_by(CLOCK_REALTIME));
}

BorderFacts Border::facts() const {
  BorderFacts facts{};
  std::copy_n(delivered_.of.begin(), kMaxBackendClusters, facts.delivered);
  std::copy_n(trimmed_.of.begin(), kMaxBackendClusters, facts.trimmed);
  return facts;
}

void Border::set_gate(unsigned cluster, std::uint32_t queue_pair, std::uint64_t completed) {
  gates_[cluster].set(queue_pair, completed);
  wake_at_gate(cluster);
}

void Border::note_came_back(const std::uint64_t* logged_since) {
  went_back_ = true;
  for (unsigned i = 0; i < federation::kMaxClusters; ++i) {
    came_back_[i] = logged_since == nullptr || oldest_alive_[i] == 0;
    if (came_back_[i])
      note_lost(i);
    else
      logged_since_[i] = logged_since[i];
  }
}

bool Border::sends_again() const {
  return !std::all_of(gates_.begin(), gates_.end(), [](const Gate& gate) { return gate.is_open(); });
}

void Border::set_others(unsigned cluster, const GateState& others) {
  if (gates_[cluster].is_open())
    came_back_[cluster] = false;  // from now on what is sent again is in the log
  else if (came_back_[cluster])
    note_lost(cluster);
  if (gates_[cluster].set_others(others)) wake_at_gate(cluster);
}

void Border::wake_at_gate(unsigned cluster) {
  const std::vector<std::uint32_t> ready = gates_[cluster].take_ready();
  tell_of_gate(cluster);
  for (const std::uint32_t number : ready)
    if (Qp* qp = g_engine->qps.find(number); qp != nullptr) qp->look_at_gate_again();
  if (!ready.empty()) g_engine->want_turn();
}

void Border::tell_of_gate(unsigned cluster) {
  if (g_host->gate_moved == nullptr) return;
  const Gate& gate = gates_[cluster];
  Told& told = told_of_gates_[cluster];
  if (told.earliest == gate.earliest() && told.awaits == gate.awaits()) return;
  told = {gate.earliest(), gate.awaits()};
  g_host->gate_moved(cluster, told.earliest, told.awaits);
}

void trace_message(BorderEvent::Kind kind, const Border& border, federation::Sn sn, unsigned peer, Opcode opcode,
                   std::uint16_t from_lid, std::uint32_t from, std::uint32_t to, std::uint32_t number,
                   const federation::PerCluster* vector) {
  enum : std::uint64_t { kRequests, kReads, kAtomics, kRefusals, kFlows };
  const std::uint64_t direction = opcode == Opcode::kReadResponse     ? kReads
                                  : opcode == Opcode::kAtomicResponse ? kAtomics
                                  : opcode == Opcode::kNak            ? kRefusals
                                                                      : kRequests;
  const std::uint64_t pair = std::uint64_t{from_lid} << 48 | std::uint64_t{from & 0xffffff} << 24 | (to & 0xffffff);
  const BorderEvent event{kind,
                          sn,
                          border.incarnation_of(border.index()),
                          peer,
                          pair * kFlows + direction,  // modulo 2^64: LIDs of a cluster are near each other
                          number,
                          vector != nullptr ? vector->clusters : 0,
                          vector != nullptr ? vector->of.data() : nullptr};
  g_host->trace(&event);
}

bool is_message(const FrameHeader& header) {
  switch (header.opcode) {
    case Opcode::kNak:
      return is_fatal(header.syndrome);
    case Opcode::kReadResponse:
    case Opcode::kAtomicResponse:
      return true;
    default:
      // A READ changes nothing where it is answered.
      return is_datagram(header.opcode) || (is_request(header.opcode) && header.opcode != Opcode::kRead);
  }
}

int set_cluster(const ClusterState* state) {
  if (state->index >= kMaxBackendClusters || state->policy > static_cast<std::uint32_t>(federation::Policy::kNone))
    return EINVAL;
  EngineGuard guard;
  std::unique_ptr<Border>& border = g_engine->border;
  if (border == nullptr) {
    if (g_engine->rendezvous != nullptr) return EINVAL;  // others have been told that it is in no cluster
    border = std::make_unique<Border>(state->index);
  } else if (border->index() != state->index) {
    return EINVAL;
  }
  if (const federation::Sn before = border->sn(); before != state->sn)
    g_engine->qps.for_each([&](Qp& qp) {
      qp.on_new_sn(before, state->sn);
      qp.note_clc(state->sn);
    });
  border->take(*state);
  std::vector<Link*>& links = g_engine->links();
  for (std::size_t i = 0; i < links.size(); ++i)  // what is delivered may need a new link
    if (links[i]->is_border()) links[i]->on_new_state();
  return 0;
}

namespace {

void set_frozen(Border& border, bool frozen) {
  border.set_frozen(frozen);
  if (!frozen) g_engine->qps.for_each([](Qp& qp) { qp.end_restoring(); });
  std::vector<Link*>& links = g_engine->links();
  for (std::size_t i = 0; i < links.size(); ++i) {
    if (!links[i]->is_border()) continue;
    if (frozen)
      links[i]->freeze();
    else
      links[i]->thaw();
  }
}

}  // namespace

void freeze_border(int phase) {
  EngineGuard guard;
  Border* border = g_engine->border.get();
  if (border == nullptr) return;
  if (phase == kBorderUndecided) {
    if (!border->frozen()) return;
    border->note_behind_clc();
    g_engine->qps.for_each([](Qp& qp) { qp.note_behind_clc(); });
  } else if (const bool frozen = phase == kBorderFrozen; border->frozen() != frozen) {
    set_frozen(*border, frozen);
  }
}

int cluster_gone(std::uint32_t cluster, std::uint32_t incarnation) {
  EngineGuard guard;
  Border* border = g_engine->border.get();
  if (border == nullptr || cluster >= kMaxBackendClusters || cluster == border->index() ||
      incarnation == std::numeric_limits<std::uint32_t>::max())
    return EINVAL;
  border->note_gone(cluster, incarnation);
  std::vector<Link*>& links = g_engine->links();
  for (std::size_t i = 0; i < links.size(); ++i)
    if (links[i]->is_border()) links[i]->on_new_state();
  return 0;
}

std::uint64_t gate_earliest(std::uint32_t cluster) {
  EngineGuard guard;
  const Border* border = g_engine->border.get();
  if (border == nullptr || cluster >= kMaxBackendClusters) return kGateNothing;
  return border->gate(cluster).earliest();
}

std::uint64_t logged_since(std::uint32_t cluster) {
  EngineGuard guard;
  const Border* border = g_engine->border.get();
  if (border == nullptr || cluster >= kMaxBackendClusters) return 0;
  bool all = true;
  g_engine->qps.for_each([&](const Qp& qp) { all = all && !qp.sends_unlogged_to(cluster); });
  return all ? border->logged_since(cluster) : kGateNothing;
}

int judge_cluster(std::uint32_t cluster, int failed) {
  EngineGuard guard;
  const Border* border = g_engine->border.get();
  if (border == nullptr || cluster >= kMaxBackendClusters || cluster == border->index()) return EINVAL;
  g_engine->qps.for_each([&](Qp& qp) { qp.on_cluster_judged(cluster, failed != 0); });
  g_engine->want_turn();
  return 0;
}

int set_gate(std::uint32_t cluster, const GateState* others) {
  EngineGuard guard;
  Border* border = g_engine->border.get();
  if (border == nullptr || cluster >= kMaxBackendClusters || cluster == border->index()) return EINVAL;
  border->set_others(cluster, *others);
  return 0;
}

void border_facts(BorderFacts* facts) {
  EngineGuard guard;
  *facts = {};
  const Border* border = g_engine->border.get();
  if (border == nullptr) return;
  if (g_host->trace != nullptr && border->sn() != 0 && !border->is_behind_clc())
    g_engine->qps.for_each([](Qp& qp) { qp.trace_posted(); });
  *facts = border->facts();
}

std::size_t held_stamps(HeldStamp* stamps, std::size_t capacity) {
  EngineGuard guard;
  std::size_t count = 0;
  for (const Link* link : g_engine->links()) {
    const federation::Stamp* held = link->held_stamp();
    if (held == nullptr) continue;
    if (count < capacity) {
      HeldStamp& stamp = stamps[count];
      stamp = {held->cluster, held->incarnation, held->sn, {}};
      std::copy_n(held->vector.of.begin(), held->vector.clusters, stamp.vector);
    }
    ++count;
  }
  return count;
}

}  // namespace shadowib::ib2tcp
