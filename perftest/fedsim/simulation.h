// Ten hours of a federation, event by event, by the rule of hooks/federation.
//
// Each pair of clusters has a flow: messages in order, with numbers. A flow stops at a message above the receiver's
// D, until the CLC that it forces has committed. Senders log. A failure takes a cluster back for good: what it had
// posted since is gone. Logs bring again what it had delivered since. The application then goes on at random.
// Ghosts compare what was delivered with what was posted, message by message, at each recovery and at the end.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "hooks/federation/collection.h"
#include "perftest/fedsim/input.h"
#include "perftest/fedsim/random.h"
#include "perftest/fedsim/trace.h"

namespace shadowib::fedsim {

struct SimulationOptions {
  federation::Policy policy = federation::Policy::kPaper;
  std::uint64_t seed = 1;
  unsigned failures = 0;      // at uniform times, of clusters by their nodes; added to those of the topology's MTBF
  unsigned suppositions = 0;  // moments at which a failure is supposed: its line is found, and no cluster goes back
  int trace = 0;              // 0 nothing, 1 recoveries, 2 commits, 3 everything
  std::function<void(const TraceEvent&)> sink;  // called for what is traced
};

struct SimulationResult {
  std::vector<std::vector<unsigned>> messages;  // posted, by sender and receiver
  std::vector<unsigned> forced, unforced;       // committed CLCs, of each cluster
  struct Collection {
    std::vector<std::size_t> before, after;  // stored CLCs, of each cluster
  };
  std::vector<Collection> collections;
  std::vector<std::size_t> most_stored;       // CLCs of each cluster at once
  std::vector<std::size_t> most_logged;       // messages of each cluster at once
  std::vector<std::size_t> most_node_logged;  // the same of one node
  std::uint64_t protocol_messages_inside = 0, protocol_messages_between = 0;
  unsigned recoveries = 0, clusters_back = 0;
  double lost_s = 0;  // summed over the clusters that went back
  unsigned suppositions = 0, supposed_back = 0;
  double supposed_lost_s = 0;
  std::uint64_t resent = 0, delivered = 0;
};

// kInternal: the rule has failed, and the text says how: a message is lost, comes twice, or has no sender.
[[nodiscard]] Status simulate(const Input& input, const SimulationOptions& options, SimulationResult* result);

}  // namespace shadowib::fedsim
