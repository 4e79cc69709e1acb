// How often, how soon and from which set a job that fails is started again. Pure: no clock, no files.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "shadowib/cli/history.h"

namespace shadowib::cli {

inline constexpr std::uint32_t kFromTheBeginning = 0;  // instead of a set's number, which is 1 or more

// A restart ended with this exit code for a reason that lies in the set, and not in the place: again would be in
// vain.
bool is_of_the_set(int code);

class Bounds {
 public:
  // Gives up after `most_restarts` failures in a row without a newer set; 0: never.
  explicit Bounds(unsigned most_restarts) : most_restarts_(most_restarts) {}

  // Takes in the job's history, oldest event first.
  void remember(const std::vector<PastEvent>& events);

  // A set has been committed: progress, if it is newer than all before.
  void committed(std::uint32_t number);
  // These are all sets that there are, in any order. Numbers of newer ones that are gone come again, for other sets:
  // what is known of them is forgotten.
  void present(const std::vector<std::uint32_t>& sets);
  // The job ran from this set, or from the beginning, and failed.
  void failed(std::uint32_t set);
  // A restart did not bring the job back. `by_the_set`: for a reason that lies in the set. Else it is one of the
  // place or the moment, and says nothing against the set.
  void not_restarted(std::uint32_t set, bool by_the_set);

  bool exhausted() const { return most_restarts_ != 0 && in_a_row_ >= most_restarts_; }
  unsigned in_a_row() const { return in_a_row_; }
  // Before the next start: 0, then 1 s, doubled with each failure, at most 5 min.
  std::int64_t pause_ms() const;
  // After two failures without a newer set, the set before is better: this one may hold what makes the job fail.
  bool is_spent(std::uint32_t set) const;
  // The order in which sets are tried. `sets`: numbers of all committed ones.
  std::vector<std::uint32_t> order(std::vector<std::uint32_t> sets) const;
  // Each of these was refused for a reason that lies in it: trying again does not help.
  bool all_refused(const std::vector<std::uint32_t>& sets) const;
  // How many sets the newest `keep` good ones are among, for removing older ones.
  unsigned to_keep(unsigned keep, const std::vector<std::uint32_t>& sets) const;

 private:
  void forget_from(std::uint32_t number);

  const unsigned most_restarts_;
  unsigned in_a_row_ = 0;
  std::uint32_t newest_ = 0;
  std::map<std::uint32_t, unsigned> failures_;  // by set
  std::set<std::uint32_t> refused_;
};

}  // namespace shadowib::cli
