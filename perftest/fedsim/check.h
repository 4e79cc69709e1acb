// Judges a trace (trace.h): each message once, in order, at its receiver; forced CLCs exactly those that the rule
// demands; the line of each recovery the latest one.
//
// The numbers of a flow ascend, with gaps: a job's requests share theirs with READs, which are no messages. Each
// member of a job tells of a CLC when it adopts it. The first one counts, and the others must say the same.
#pragma once

#include <istream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "perftest/fedsim/trace.h"

namespace shadowib::fedsim {

class TraceChecker {
 public:
  // Takes the next line. "" or what is wrong; the line has then no effect. The first line is the start.
  std::string take(const std::string& line);

  std::uint64_t posts() const { return posts_; }
  std::uint64_t deliveries() const { return deliveries_; }
  std::uint64_t forced() const { return forced_; }
  std::uint64_t recoveries() const { return recoveries_; }

 private:
  using FlowKey = std::pair<unsigned, std::uint64_t>;  // sender, flow
  struct TracedFlow {
    unsigned to = 0;
    std::vector<std::uint64_t> numbers;  // of the messages posted
    std::vector<federation::Stamp> posted;
    std::vector<federation::Sn> delivered;  // in which interval of the receiver
  };
  struct TracedCluster {
    federation::RunningCluster running;
    std::vector<federation::ClcRecord> kept;
    std::vector<federation::Stamp> held;
    std::vector<FlowKey> held_flows;
    std::set<unsigned> told;  // members that have told of the last CLC
  };

  std::string take(const TraceEvent& event);
  std::string start(const TraceEvent& event);
  std::string check_place(const TraceEvent& event) const;
  std::string check_vector(const TraceEvent& event, const federation::Stamp& stamp) const;
  std::string post(const TraceEvent& event);
  std::string commit(const TraceEvent& event);
  std::string arrive(const TraceEvent& event);
  std::string resume(const TraceEvent& event);
  std::string check_line(const TraceEvent& event, const std::vector<federation::ClusterHistory>& histories,
                         federation::RecoveryLine* line) const;
  void reach(const federation::RecoveryLine& line, const TraceEvent& event);

  bool started_ = false;
  std::string job_;
  federation::Policy policy_ = federation::Policy::kPaper;
  std::vector<TracedCluster> clusters_;
  std::map<FlowKey, TracedFlow> flows_;
  std::uint64_t posts_ = 0, deliveries_ = 0, forced_ = 0, recoveries_ = 0;
};

// Reads a whole trace and tells on *complaints, a line each, at most `most`, what is wrong. Returns how much is.
std::uint64_t check_trace(std::istream& trace, std::size_t most, std::vector<std::string>* complaints,
                          TraceChecker* checker);

}  // namespace shadowib::fedsim
