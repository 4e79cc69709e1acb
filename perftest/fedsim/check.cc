#include "perftest/fedsim/check.h"

#include <algorithm>

namespace shadowib::fedsim {
namespace {

using federation::Arrival;
using federation::ClcRecord;
using federation::PerCluster;
using Kind = TraceEvent::Kind;

std::string of(const char* what, std::uint64_t number) { return std::string(what) + " " + std::to_string(number); }

}  // namespace

std::string TraceChecker::take(const std::string& line) {
  TraceEvent event;
  if (const Status status = decode_event(line, &event); !status) return status.text();
  return take(event);
}

std::string TraceChecker::take(const TraceEvent& event) {
  if (event.kind == Kind::kStart) return start(event);
  if (!started_) return "the trace has no start";
  if (event.job != job_) return "job " + event.job + " is not the job of this trace, " + job_;
  if (event.kind == Kind::kResume) return resume(event);
  if (std::string wrong = check_place(event); !wrong.empty()) return wrong;
  switch (event.kind) {
    case Kind::kPost:
      return post(event);
    case Kind::kCommit:
      return commit(event);
    default:
      return arrive(event);
  }
}

std::string TraceChecker::start(const TraceEvent& event) {
  if (started_) return "the trace starts twice";
  started_ = true;
  job_ = event.job;
  policy_ = event.policy;
  PerCluster incarnations(event.clusters);
  for (unsigned i = 0; i < event.clusters; ++i) incarnations[i] = event.incarnation;
  for (unsigned i = 0; i < event.clusters; ++i)
    clusters_.push_back({{i, 0, PerCluster(event.clusters), incarnations}, {}, {}, {}, {}});
  return {};
}

std::string TraceChecker::check_place(const TraceEvent& event) const {
  if (event.cluster >= clusters_.size()) return of("there is no cluster", event.cluster);
  const federation::RunningCluster& running = clusters_[event.cluster].running;
  if (event.incarnation != running.incarnations[event.cluster])
    return of("the cluster is of incarnation", running.incarnations[event.cluster]);
  if (event.kind == Kind::kCommit) return {};
  if (event.sn != running.sn) return of("the cluster is at SN", running.sn);
  if (event.peer >= clusters_.size()) return of("there is no cluster", event.peer);
  if (event.peer == event.cluster) return "a message does not leave its cluster";
  return {};
}

std::string TraceChecker::check_vector(const TraceEvent& event, const federation::Stamp& stamp) const {
  if (policy_ == federation::Policy::kVector)
    return event.vector != stamp.vector ? "the vector is not D of the sender" : "";
  return event.vector.clusters != 0 ? "a vector, which the policy does not carry" : "";
}

std::string TraceChecker::post(const TraceEvent& event) {
  const federation::RunningCluster& running = clusters_[event.cluster].running;
  if (running.sn == 0) return "a message leaves a cluster that has no CLC";
  const federation::Stamp stamp = federation::stamp_of(running);
  if (std::string wrong = check_vector(event, stamp); !wrong.empty()) return wrong;
  const auto [place, added] = flows_.try_emplace({event.cluster, event.flow}, TracedFlow{event.peer, {}, {}, {}});
  TracedFlow& flow = place->second;
  if (flow.to != event.peer) return of("the flow leads to cluster", flow.to);
  if (!flow.numbers.empty() && event.number <= flow.numbers.back())
    return of("the numbers of the flow are beyond", flow.numbers.back());
  flow.numbers.push_back(event.number);
  flow.posted.push_back(stamp);
  ++posts_;
  return {};
}

// A hold or a delivery.
std::string TraceChecker::arrive(const TraceEvent& event) {
  const auto place = flows_.find({event.peer, event.flow});
  if (place == flows_.end()) return "nothing was posted in the flow";
  TracedFlow& flow = place->second;
  if (flow.to != event.cluster) return of("the flow leads to cluster", flow.to);
  const auto found = std::lower_bound(flow.numbers.begin(), flow.numbers.end(), event.number);
  if (found == flow.numbers.end() || *found != event.number) return "the message was not posted";
  const auto at = static_cast<std::size_t>(found - flow.numbers.begin());
  if (at < flow.delivered.size()) return "the message was delivered before";
  // A receiver that is not ready refuses messages, and may hold the one behind them.
  if (event.kind == Kind::kDeliver && at > flow.delivered.size())
    return of("the next number of the flow is", flow.numbers[flow.delivered.size()]);
  TracedCluster& receiver = clusters_[event.cluster];
  const federation::Stamp& stamp = flow.posted[at];
  const Arrival arrival = federation::judge(policy_, receiver.running, stamp);
  if (event.kind == Kind::kHold) {
    if (arrival != Arrival::kHold) return of("nothing demands that it is held: it has SN", stamp.sn);
    if (std::find(receiver.held_flows.begin(), receiver.held_flows.end(), place->first) != receiver.held_flows.end())
      return "the message is held already";
    receiver.held.push_back(stamp);
    receiver.held_flows.push_back(place->first);
    return {};
  }
  if (arrival != Arrival::kDeliver) return of("it is delivered before a CLC that it demands: it has SN", stamp.sn);
  federation::note_delivered(policy_, &receiver.running, stamp);
  flow.delivered.push_back(receiver.running.sn);
  ++deliveries_;
  return {};
}

std::string TraceChecker::commit(const TraceEvent& event) {
  TracedCluster& cluster = clusters_[event.cluster];
  if (!cluster.kept.empty() && event.record == cluster.kept.back())
    return cluster.told.insert(event.member).second ? "" : of("the CLC was told before by member", event.member);
  ClcRecord expected;
  if (const Status status = federation::next_clc(policy_, cluster.running, cluster.held, &expected); !status)
    return status.text();
  expected.claim = ClcRecord::Claim::kCommitted;
  if (event.record.sn != expected.sn) return of("the next CLC is", expected.sn);
  if (event.record.forced && !expected.forced) return "a CLC is called forced, and nothing is held";
  if (!event.record.forced && expected.forced) return "a CLC is not called forced, and messages are held";
  if (event.record.before != expected.before) return "before is not D of the interval that ends";
  if (event.record.after != expected.after) return "after is not D with all that is held";
  cluster.kept.push_back(event.record);
  cluster.told = {event.member};
  federation::commit(&cluster.running, event.record);
  cluster.held.clear();
  cluster.held_flows.clear();
  forced_ += event.record.forced;
  return {};
}

std::string TraceChecker::check_line(const TraceEvent& event,
                                     const std::vector<federation::ClusterHistory>& histories,
                                     federation::RecoveryLine* line) const {
  if (const Status status = federation::find_line(histories, line); !status) return status.text();
  const PerCluster sns = line->sns(histories);
  if (event.sns != sns) return "sns are not those of the latest line";
  for (unsigned i = 0; i < clusters_.size(); ++i) {
    const federation::RunningCluster& running = clusters_[i].running;
    if (event.stays[i] != line->clusters[i].stays)
      return of(event.stays[i] ? "the line takes back cluster" : "the line need not take back cluster", i);
    if (event.running[i].has_value() != line->clusters[i].stays) return of("running tells or lacks D of cluster", i);
    if (event.running[i] && *event.running[i] != running.depends) return of("running is not D of cluster", i);
    if (event.incarnations[i] != running.incarnations[i] + !line->clusters[i].stays)
      return of("an incarnation is not the next one, of cluster", i);
  }
  return {};
}

std::string TraceChecker::resume(const TraceEvent& event) {
  const std::size_t n = clusters_.size();
  if (event.stays.size() != n || event.sns.clusters != n || event.incarnations.clusters != n ||
      event.running.size() != n)
    return "a list has not one entry for each cluster";
  std::vector<federation::ClusterHistory> histories;
  for (const TracedCluster& cluster : clusters_) histories.push_back({cluster.kept, cluster.running, {}});
  for (unsigned failed : event.failed) {
    if (failed >= n) return of("there is no cluster", failed);
    histories[failed].running.reset();
  }
  federation::RecoveryLine line;
  if (std::string wrong = check_line(event, histories, &line); !wrong.empty()) return wrong;
  reach(line, event);
  ++recoveries_;
  return {};
}

void TraceChecker::reach(const federation::RecoveryLine& line, const TraceEvent& event) {
  for (unsigned i = 0; i < clusters_.size(); ++i) {
    TracedCluster& cluster = clusters_[i];
    cluster.held.clear();
    cluster.held_flows.clear();
    if (line.clusters[i].stays) {
      cluster.running.incarnations = event.incarnations;
      continue;
    }
    cluster.kept.resize(line.clusters[i].record + 1);
    federation::go_back(&cluster.running, cluster.kept.back(), event.sns, event.incarnations);
  }
  for (auto& [key, flow] : flows_) {
    const auto undone = [&](unsigned cluster, federation::Sn sn) {
      return !line.clusters[cluster].stays && sn >= event.sns[cluster];
    };
    while (!flow.posted.empty() && undone(key.first, flow.posted.back().sn)) flow.posted.pop_back();
    flow.numbers.resize(flow.posted.size());
    while (!flow.delivered.empty() && undone(flow.to, flow.delivered.back())) flow.delivered.pop_back();
    for (federation::Stamp& stamp : flow.posted) stamp.incarnation = event.incarnations[key.first];
  }
}

std::uint64_t check_trace(std::istream& trace, std::size_t most, std::vector<std::string>* complaints,
                          TraceChecker* checker) {
  std::uint64_t wrong = 0, number = 0;
  for (std::string line; std::getline(trace, line);) {
    ++number;
    const std::string complaint = checker->take(line);
    if (complaint.empty()) continue;
    if (++wrong <= most) complaints->push_back(of("line", number) + ": " + complaint);
  }
  if (number == 0) {
    complaints->push_back("the trace is empty");
    ++wrong;
  }
  return wrong;
}

}  // namespace shadowib::fedsim
