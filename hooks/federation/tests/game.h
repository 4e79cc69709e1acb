// A federation of a few clusters at random, with ghosts that know every message. Oracle of rule, line and collection.
//
// Ghosts know in which interval a message was posted and delivered; no rule reads them. The brute force tries all
// combinations of checkpoints, and calls one consistent if no cluster has delivered what its sender has not posted.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "hooks/federation/collection.h"

namespace shadowib::federation {

// An index into the CLCs of each cluster; one more: it stays.
using Places = std::vector<std::size_t>;

class Game {
 public:
  struct Options {
    Policy policy = Policy::kPaper;
    unsigned clusters = 2;
    bool at_whim = false;  // deliveries without the CLC that the rule demands, and CLCs that nobody demands
  };
  // Counts of events. A test that meets none of them shows nothing.
  struct Met {
    int lines = 0, cascades = 0, stays = 0, bounds = 0, collections = 0, collected = 0, resent = 0, lost = 0;
  };

  Game(std::uint64_t seed, Options options);
  // Plays `moves`. "" or how the rule, a line or a collection was wrong.
  std::string play(int moves, Met* met);

  // The latest consistent combination, found by trying all. None: no combination is consistent.
  std::optional<Places> brute_force(const std::vector<ClusterHistory>& histories) const;

 private:
  struct Message {
    unsigned from, to;
    Stamp stamp;                  // its SN is the interval of the post
    std::optional<Sn> delivered;  // interval of the delivery
  };
  // D says more than was delivered: what a CLC was taken for comes in its interval, or may.
  struct Promise {
    unsigned from, to;
    Sn posted, interval;
  };

  unsigned any(unsigned count) { return static_cast<unsigned>(random_() % count); }
  std::string move(Met* met);
  std::string arrive(unsigned to);
  std::string take_clc(unsigned cluster, const std::vector<std::size_t>& held);
  std::string deliver(Message* message);
  std::string check_dependencies(unsigned cluster) const;
  std::string fail(Met* met);
  std::string reach(const RecoveryLine& line, const std::vector<ClusterHistory>& histories, Met* met);
  std::string compare(const std::vector<ClusterHistory>& histories, RecoveryLine* line, Met* met) const;
  std::string collect_all(Met* met);
  void promise(unsigned cluster, const PerCluster& beyond, const PerCluster& depends);
  std::vector<ClusterHistory> histories() const;
  bool consistent(const std::vector<ClusterHistory>& histories, const Places& places) const;

  std::mt19937_64 random_;
  Options options_;
  std::vector<RunningCluster> running_;
  std::vector<std::vector<ClcRecord>> kept_;
  std::vector<Message> messages_;
  std::vector<Promise> promises_;
};

}  // namespace shadowib::federation
