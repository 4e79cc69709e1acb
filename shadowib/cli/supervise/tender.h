// Looks after the clusters of a federation: has those that fail taken back, by `restart --job`, while the others run.
//
// The locks of members tell who lives; the exchange is asked only when a member has died. A command of its own takes
// the clusters back and stays with their processes, so they outlive this one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shadowib/cli/supervise/bounds.h"
#include "shadowib/cli/supervise/event_command.h"
#include "shadowib/cli/supervise/lives.h"
#include "shadowib/cli/supervise/signals.h"

namespace shadowib::cli {

class Tender {
 public:
  // `clusters`: those that are looked after; none: all. `words`: options of each `restart --job`.
  Tender(const SuperviseSettings& settings, std::set<std::string> clusters, std::vector<std::string> words)
      : settings_(settings),
        clusters_(std::move(clusters)),
        words_(std::move(words)),
        on_event_(settings),
        signals_(0) {}

  // Until all members that are looked after have ended in an orderly way. Returns the exit code: the first of theirs
  // that is not 0, kSavedAndEnded, kGivenUp, or 128 + N if signal N has ended the watching.
  int run();

 private:
  using Names = std::set<std::string>;
  // A command that takes clusters back.
  struct Recovering {
    pid_t pid = -1;
    Names clusters;
    bool runs = false;          // their processes do
    std::int64_t began_ms = 0;  // since 1970
  };

  bool is_tended(const MemberLife& member) const;
  // The exit code, once there is nothing more to look after.
  std::optional<int> judge(const Lives& lives);
  std::optional<int> judge_end(const Lives& lives);
  // Names of members that are looked after and have died, without those that nobody misses.
  Names new_deaths(const Lives& lives) const;
  bool is_due() const;
  using Dead = std::map<std::string, MemberLife>;  // one for each cluster that has failed
  // Members that have died and are missed; others become known. kIo: the exchange is lost.
  Status find_failed(const Lives& lives, Dead* failed);
  // False, of these: a cluster has failed too often, or the next try would be in vain.
  bool note_failures(const Dead& failed);
  bool start_recovery();
  bool step_commands();
  bool not_recovered(const Recovering& command, int wait_status);
  bool is_recovering() const;
  bool was_saved(const std::string& epoch) const;
  bool count_failed_try(const Names& clusters);
  bool has_recovered(const Recovering& command) const;
  bool is_noted(const MemberLife& dead) const;
  void put_off(const std::string& cluster);
  int give_up(const std::string& why);
  void say(const char* event, const Names& clusters, const std::string& text) const;
  std::uint32_t newest_clc(const std::string& cluster) const;
  Bounds& bounds_of(const std::string& cluster);

  const SuperviseSettings& settings_;
  const Names clusters_;
  const std::vector<std::string> words_;
  EventCommand on_event_;
  HeldSignals signals_;
  std::string epoch_;
  std::map<std::string, Bounds> bounds_;  // by cluster
  Names failing_;                         // clusters that have failed and do not run again yet
  Names known_;                           // names of dead members that nobody misses (Lives::name_of)
  std::vector<Recovering> commands_;
  Names looked_;                                     // deaths that were looked into
  std::map<std::string, std::int64_t> next_try_ns_;  // by cluster; CLOCK_MONOTONIC
  std::int64_t busy_until_ns_ = 0;                   // likewise, of all
  std::string why_, told_;                           // the last failure; the last complaint, which is not told twice
};

}  // namespace shadowib::cli
