#include "perftest/fedsim/simulation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "perftest/fedsim/federation_state.h"

namespace shadowib::fedsim {
namespace {

using federation::Arrival;
using federation::ClcRecord;
using federation::Stamp;

struct Event {
  enum class Kind : std::uint8_t { kSend, kArrive, kTimer, kCommit, kCollect, kFail, kSuppose };
  Time at;
  std::uint64_t order;  // of two at one time the one that was planned first
  Kind kind;
  unsigned cluster, peer, node;
  std::uint64_t tag;    // number of a message, generation of a timer, round of a CLC
  std::uint64_t epoch;  // of a connection

  bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
};

class Simulation {
 public:
  Simulation(const Input& input, const SimulationOptions& options, SimulationResult* result)
      : input_(input),
        options_(options),
        result_(*result),
        random_(options.seed),
        state_(input.topology.clusters(), input.topology.nodes) {}

  Status run();

 private:
  using Kind = Event::Kind;
  unsigned clusters() const { return state_.clusters(); }
  void plan(Time at, Kind kind, unsigned cluster, unsigned peer = 0, unsigned node = 0, std::uint64_t tag = 0,
            std::uint64_t epoch = 0) {
    if (at <= input_.application.total) queue_.push({at, order_++, kind, cluster, peer, node, tag, epoch});
  }
  Time any_time() { return static_cast<Time>(random_.uniform() * static_cast<double>(input_.application.total)); }
  unsigned any_node(unsigned cluster) { return static_cast<unsigned>(random_.below(input_.topology.nodes[cluster])); }
  unsigned any_cluster();

  void plan_counted();
  void plan_computation(unsigned cluster, unsigned node);
  void plan_all();
  Status take(const Event& event);
  void send(const Event& event);
  void post(unsigned from, unsigned to, unsigned node);
  void put_on_wire(const Flow& flow, std::uint64_t number);
  void arrive(const Event& event);
  void drain(unsigned cluster);
  bool drain(Flow* flow);
  void begin_clc(unsigned cluster);
  Status commit_clc(const Event& event);
  void start_timer(unsigned cluster);
  Status collect();
  Status suppose(unsigned cluster);
  Status fail(unsigned cluster);
  Status recover(const federation::RecoveryLine& line, const std::vector<federation::ClusterHistory>& found,
                 unsigned failed);
  double lost_s(const federation::RecoveryLine& line, unsigned* back) const;
  void note_logs(unsigned cluster);
  Status check_flows() const;
  TraceEvent event_of(TraceEvent::Kind kind, unsigned cluster) const;
  void trace(int level, const TraceEvent& event) const {
    if (options_.trace >= level && options_.sink) options_.sink(event);
  }
  void trace_message(TraceEvent::Kind kind, unsigned cluster, const Flow& flow, std::uint64_t number) const;

  const Input& input_;
  const SimulationOptions& options_;
  SimulationResult& result_;
  Random random_;
  FederationState state_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  Time now_ = 0;
  std::uint64_t order_ = 0, ids_ = 0;
};

unsigned Simulation::any_cluster() {
  const std::vector<unsigned>& nodes = input_.topology.nodes;
  std::uint64_t node = random_.below(std::accumulate(nodes.begin(), nodes.end(), std::uint64_t{0}));
  unsigned cluster = 0;
  while (node >= nodes[cluster]) node -= nodes[cluster++];
  return cluster;
}

void Simulation::plan_counted() {
  for (unsigned i = 0; i < clusters(); ++i)
    for (unsigned j = 0; j < clusters(); ++j) {
      const unsigned bursts = input_.application.bursts[i][j];
      std::vector<Time> times(bursts);
      for (Time& time : times) time = any_time();
      for (unsigned m = 0; m < input_.application.messages[i][j]; ++m) {
        const Time at = bursts == 0 ? any_time() : times[m < bursts ? m : random_.below(bursts)];
        plan(at, Kind::kSend, i, j, any_node(i));
      }
    }
}

void Simulation::plan_computation(unsigned cluster, unsigned node) {
  const double mean = input_.application.mean_computation_us[cluster];
  plan(now_ + static_cast<Time>(std::llround(random_.exponential(mean))), Kind::kSend, cluster, 0, node);
}

void Simulation::plan_all() {
  if (input_.application.counted()) {
    plan_counted();
  } else {
    for (unsigned i = 0; i < clusters(); ++i)
      for (unsigned node = 0; node < input_.topology.nodes[i]; ++node) plan_computation(i, node);
  }
  for (unsigned i = 0; i < options_.failures; ++i) plan(any_time(), Kind::kFail, any_cluster());
  if (input_.topology.mtbf != kNever)
    for (double at = 0; (at += random_.exponential(static_cast<double>(input_.topology.mtbf))) <
                        static_cast<double>(input_.application.total);)
      plan(static_cast<Time>(at), Kind::kFail, any_cluster());
  for (unsigned i = 0; i < options_.suppositions; ++i) plan(any_time(), Kind::kSuppose, any_cluster());
  if (input_.timers.collection != kNever) plan(input_.timers.collection, Kind::kCollect, 0);
}

Status Simulation::run() {
  const std::size_t n = clusters();
  result_ = {};
  result_.messages.assign(n, std::vector<unsigned>(n));
  result_.forced.assign(n, 0);
  result_.unforced.assign(n, 0);
  result_.most_stored = result_.most_logged = result_.most_node_logged = std::vector<std::size_t>(n);
  TraceEvent start = event_of(TraceEvent::Kind::kStart, 0);
  start.policy = options_.policy;
  start.clusters = clusters();
  trace(1, start);
  plan_all();
  for (unsigned i = 0; i < n; ++i) begin_clc(i);  // a cluster begins with a CLC
  while (!queue_.empty()) {
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.at;
    SHADOWIB_TRY(take(event));
  }
  return check_flows();
}

Status Simulation::take(const Event& event) {
  switch (event.kind) {
    case Kind::kSend:
      send(event);
      return {};
    case Kind::kArrive:
      arrive(event);
      return {};
    case Kind::kTimer:
      if (state_.at(event.cluster).timer == event.tag) begin_clc(event.cluster);
      return {};
    case Kind::kCommit:
      return commit_clc(event);
    case Kind::kCollect:
      return collect();
    case Kind::kFail:
      return fail(event.cluster);
    case Kind::kSuppose:
      return suppose(event.cluster);
  }
  return {};
}

void Simulation::send(const Event& event) {
  unsigned to = event.peer;
  if (!input_.application.counted()) {
    plan_computation(event.cluster, event.node);
    double chance = random_.uniform();
    const std::vector<double>& sends = input_.application.sends[event.cluster];
    for (to = 0; to < clusters() && chance >= sends[to]; ++to) chance -= sends[to];
    if (to == clusters()) return;  // it computes on
  }
  if (to == event.cluster)
    ++result_.messages[to][to];
  else if (state_.at(event.cluster).stopped || state_.at(event.cluster).running.sn == 0)
    state_.at(event.cluster).queued.emplace_back(to, event.node);
  else
    post(event.cluster, to, event.node);
}

void Simulation::post(unsigned from, unsigned to, unsigned node) {
  Flow& flow = state_.flow(from, to);
  flow.posted.push_back({ids_++, node, federation::stamp_of(state_.at(from).running)});
  ++result_.messages[from][to];
  note_logs(from);
  trace_message(TraceEvent::Kind::kPost, from, flow, flow.posted.size() - 1);
  put_on_wire(flow, flow.posted.size() - 1);
}

void Simulation::put_on_wire(const Flow& flow, std::uint64_t number) {
  const Time takes = input_.topology.between[flow.from][flow.to].takes(input_.application.message_bytes);
  plan(now_ + takes, Kind::kArrive, flow.from, flow.to, 0, number, flow.epoch);
}

void Simulation::arrive(const Event& event) {
  Flow& flow = state_.flow(event.cluster, event.peer);
  if (event.epoch != flow.epoch) return;  // what a dead connection carried
  flow.arrived = event.tag + 1;
  drain(event.peer);
}

// Delivers what may be delivered. Links are frozen while a CLC is under way.
void Simulation::drain(unsigned cluster) {
  bool holds = false;
  for (unsigned peer = 0; peer < clusters() && !state_.at(cluster).stopped; ++peer)
    if (peer != cluster) holds |= drain(&state_.flow(peer, cluster));
  if (holds) begin_clc(cluster);
}

// True: the flow stands at a message above D.
bool Simulation::drain(Flow* flow) {
  SimulatedCluster& receiver = state_.at(flow->to);
  while (flow->delivered.size() < flow->arrived) {
    const std::uint64_t number = flow->delivered.size();
    const Stamp& stamp = flow->posted[number].stamp;
    const Arrival arrival = federation::judge(options_.policy, receiver.running, stamp);
    if (arrival == Arrival::kHold) {
      if (!flow->held) trace_message(TraceEvent::Kind::kHold, flow->to, *flow, number);
      flow->held = true;
      return true;
    }
    federation::note_delivered(options_.policy, &receiver.running, stamp);
    flow->held = false;
    flow->delivered.push_back(flow->posted[number].id);
    ++result_.delivered;
    trace_message(TraceEvent::Kind::kDeliver, flow->to, *flow, number);
  }
  return false;
}

void Simulation::begin_clc(unsigned cluster) {
  SimulatedCluster& member = state_.at(cluster);
  if (member.stopped) return;
  member.stopped = true;
  member.held.clear();
  for (unsigned peer = 0; peer < clusters(); ++peer)
    if (const Flow& flow = state_.flow(peer, cluster); flow.held)
      member.held.push_back(flow.posted[flow.delivered.size()].stamp);
  // Request, acknowledgements, commit.
  const Time takes = 3 * input_.topology.inside[cluster].takes(0) + input_.timers.clc_takes;
  result_.protocol_messages_inside += 3ull * (input_.topology.nodes[cluster] - 1);
  plan(now_ + takes, Kind::kCommit, cluster, 0, 0, member.round);
}

Status Simulation::commit_clc(const Event& event) {
  SimulatedCluster& member = state_.at(event.cluster);
  if (event.tag != member.round) return {};  // a recovery has given it up
  ClcRecord record;
  SHADOWIB_TRY(federation::next_clc(options_.policy, member.running, member.held, &record));
  record.claim = ClcRecord::Claim::kCommitted;
  state_.store(event.cluster, record, now_);
  federation::commit(&member.running, record);
  ++(record.forced ? result_.forced : result_.unforced)[event.cluster];
  result_.most_stored[event.cluster] = std::max(result_.most_stored[event.cluster], member.kept.size());
  TraceEvent told = event_of(TraceEvent::Kind::kCommit, event.cluster);
  told.record = record;
  trace(2, told);
  member.stopped = false;
  ++member.round;
  start_timer(event.cluster);
  for (const auto& [to, node] : std::exchange(member.queued, {})) post(event.cluster, to, node);
  drain(event.cluster);
  return {};
}

void Simulation::start_timer(unsigned cluster) {
  const std::uint64_t generation = ++state_.at(cluster).timer;
  if (input_.timers.clc[cluster] == kNever) return;
  Time left = input_.timers.clc[cluster];
  if (generation == 1 && !input_.timers.in_step)
    left -= static_cast<Time>(random_.uniform() * static_cast<double>(left));
  plan(now_ + left, Kind::kTimer, cluster, 0, 0, generation);
}

Status Simulation::collect() {
  plan(now_ + input_.timers.collection, Kind::kCollect, 0);
  const federation::PerCluster incarnations = state_.at(0).running.incarnations;
  federation::ClcCollection collection;
  SHADOWIB_TRY(federation::find_collection(state_.histories({}), incarnations, &collection));
  SimulationResult::Collection counts;
  for (unsigned i = 0; i < clusters(); ++i) counts.before.push_back(state_.at(i).kept.size());
  state_.drop(collection);
  for (unsigned i = 0; i < clusters(); ++i) {
    counts.after.push_back(state_.at(i).kept.size());
    result_.protocol_messages_inside += input_.topology.nodes[i] - 1;
  }
  result_.protocol_messages_between += 3ull * (clusters() - 1);
  result_.collections.push_back(std::move(counts));
  return check_flows();
}

double Simulation::lost_s(const federation::RecoveryLine& line, unsigned* back) const {
  double lost = 0;
  for (unsigned i = 0; i < clusters(); ++i) {
    if (line.clusters[i].stays) continue;
    ++*back;
    lost += static_cast<double>(now_ - state_.at(i).kept[line.clusters[i].record].at) / kSecond;
  }
  return lost;
}

Status Simulation::suppose(unsigned cluster) {
  if (state_.at(cluster).kept.empty()) return {};
  federation::RecoveryLine line;
  SHADOWIB_TRY(federation::find_line(state_.histories({cluster}), &line));
  ++result_.suppositions;
  result_.supposed_lost_s += lost_s(line, &result_.supposed_back);
  return {};
}

Status Simulation::fail(unsigned cluster) {
  if (state_.at(cluster).kept.empty()) return {};  // before its first CLC there is nothing to lose
  const std::vector<federation::ClusterHistory> found = state_.histories({cluster});
  federation::RecoveryLine line;
  SHADOWIB_TRY(federation::find_line(found, &line));
  ++result_.recoveries;
  result_.lost_s += lost_s(line, &result_.clusters_back);
  return recover(line, found, cluster);
}

Status Simulation::recover(const federation::RecoveryLine& line, const std::vector<federation::ClusterHistory>& found,
                           unsigned failed) {
  const federation::PerCluster sns = line.sns(found);
  std::vector<bool> given_up(
      clusters());  // CLCs that no message forced, of clusters that stay: they are asked for again
  for (unsigned i = 0; i < clusters(); ++i)
    given_up[i] = line.clusters[i].stays && state_.at(i).stopped && state_.at(i).held.empty();
  result_.resent += state_.reach(line, sns);
  // An alert to each other cluster for each cluster that goes back, and a broadcast inside.
  for (unsigned i = 0; i < clusters(); ++i) {
    if (!line.clusters[i].stays) result_.protocol_messages_between += clusters() - 1;
    result_.protocol_messages_inside += input_.topology.nodes[i] - 1;
  }
  TraceEvent told = event_of(TraceEvent::Kind::kResume, 0);
  told.failed = {failed};
  for (unsigned i = 0; i < clusters(); ++i) {
    told.stays.push_back(line.clusters[i].stays);
    told.running.push_back(line.clusters[i].stays ? std::optional(found[i].running->depends) : std::nullopt);
  }
  told.sns = sns;
  told.incarnations = state_.at(0).running.incarnations;
  trace(1, told);
  SHADOWIB_TRY(check_flows());
  for (unsigned i = 0; i < clusters(); ++i) {
    if (!line.clusters[i].stays) start_timer(i);
    for (unsigned j = 0; j < clusters(); ++j) {
      const Flow& flow = state_.flow(i, j);
      if (i == j || (line.clusters[i].stays && line.clusters[j].stays)) continue;
      for (std::uint64_t number = flow.delivered.size(); number < flow.posted.size(); ++number)
        put_on_wire(flow, number);
    }
  }
  for (unsigned i = 0; i < clusters(); ++i) {
    for (const auto& [to, node] : std::exchange(state_.at(i).queued, {})) post(i, to, node);
    drain(i);
    if (given_up[i]) begin_clc(i);
  }
  return {};
}

void Simulation::note_logs(unsigned cluster) {
  std::size_t& most = result_.most_logged[cluster];
  most = std::max(most, state_.logged(cluster));
  std::size_t& of_node = result_.most_node_logged[cluster];
  of_node = std::max(of_node, state_.most_logged_by_node(cluster));
}

Status Simulation::check_flows() const {
  const char* wrong = state_.wrong();
  return wrong ? Status::of(Code::kInternal, 0, "at %.6f s: %s", static_cast<double>(now_) / kSecond, wrong)
               : Status();
}

TraceEvent Simulation::event_of(TraceEvent::Kind kind, unsigned cluster) const {
  TraceEvent event;
  event.kind = kind;
  event.at_us = static_cast<std::uint64_t>(now_);
  event.job = "fedsim";
  event.cluster = cluster;
  event.incarnation = state_.at(cluster).running.incarnations[cluster];
  event.sn = state_.at(cluster).running.sn;
  return event;
}

void Simulation::trace_message(TraceEvent::Kind kind, unsigned cluster, const Flow& flow,
                               std::uint64_t number) const {
  if (options_.trace < 3) return;
  TraceEvent event = event_of(kind, cluster);
  event.peer = kind == TraceEvent::Kind::kPost ? flow.to : flow.from;
  event.flow = flow.from * clusters() + flow.to;
  event.number = number;
  event.member = flow.posted[number].node;
  if (options_.policy == federation::Policy::kVector) event.vector = flow.posted[number].stamp.vector;
  trace(3, event);
}

}  // namespace

Status simulate(const Input& input, const SimulationOptions& options, SimulationResult* result) {
  return Simulation(input, options, result).run();
}

}  // namespace shadowib::fedsim
