// The clusters of a simulation, and what their CLCs keep. No time passes in here; simulation.cc has the clock.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "hooks/federation/collection.h"
#include "perftest/fedsim/flow.h"

namespace shadowib::fedsim {

// A CLC with the places of flows that it holds.
struct StoredClc {
  federation::ClcRecord record;
  Time at = 0;
  std::vector<std::uint64_t> posted, delivered;  // by peer
};

struct SimulatedCluster {
  federation::RunningCluster running;
  std::vector<StoredClc> kept;
  // The CLC under way.
  bool stopped = false;
  std::vector<federation::Stamp> held;
  std::uint64_t timer = 0;                            // its generation: a commit restarts it
  std::uint64_t round = 0;                            // of the CLC under way: a recovery gives it up
  std::vector<std::pair<unsigned, unsigned>> queued;  // peer and node of what is posted meanwhile
};

class FederationState {
 public:
  FederationState(unsigned clusters, std::vector<unsigned> nodes);

  unsigned clusters() const { return static_cast<unsigned>(members_.size()); }
  SimulatedCluster& at(unsigned cluster) { return members_[cluster]; }
  const SimulatedCluster& at(unsigned cluster) const { return members_[cluster]; }
  Flow& flow(unsigned from, unsigned to) { return flows_[from * clusters() + to]; }
  const Flow& flow(unsigned from, unsigned to) const { return flows_[from * clusters() + to]; }

  // As a recovery or a collection finds it. `failed` are those that do not answer.
  std::vector<federation::ClusterHistory> histories(const std::vector<unsigned>& failed) const;
  void store(unsigned cluster, const federation::ClcRecord& record, Time now);
  // All clusters reach the line: CLCs under way are given up, states and flows are as they were. Each flow that an
  // end of which went back begins a new connection. Returns how many messages come again from logs.
  std::uint64_t reach(const federation::RecoveryLine& line, const federation::PerCluster& sns);
  // CLCs below go, and logs of what every CLC of the receiver that is left has delivered.
  void drop(const federation::ClcCollection& collection);
  std::size_t logged(unsigned cluster) const;
  std::size_t most_logged_by_node(unsigned cluster) const;
  // nullptr, or what is wrong with a flow.
  const char* wrong() const;

 private:
  void go_back(unsigned cluster, std::size_t record, const federation::PerCluster& sns,
               const federation::PerCluster& incarnations);

  std::vector<SimulatedCluster> members_;
  std::vector<Flow> flows_;
  std::vector<unsigned> nodes_;
};

}  // namespace shadowib::fedsim
