// The recovery line: to which CLC each cluster goes back when clusters have failed.
//
// A failed cluster goes to its last CLC. Its messages since then have no sender any more. A cluster that has
// delivered one goes back, too: to the CLC before the oldest such delivery. That is repeated until nothing changes.
// The line is the latest one: no cluster goes further than it must. It is sound however CLCs came
// about, since it uses what was delivered, and not why it was allowed.
//
// Source: as in rule.h, section 3.4. Ours lets several clusters fail at once: the lesser one of two lines, cluster
// by cluster, is a line.
#pragma once

#include <optional>
#include <vector>

#include "hooks/federation/rule.h"

namespace shadowib::federation {

// One cluster, as a recovery or a collection has found it.
struct ClusterHistory {
  std::vector<ClcRecord> kept;  // its CLCs, the oldest first
  // The answer of its members. None: it has failed, or nobody answers.
  std::optional<RunningCluster> running;
  // A line that was published and not yet reached: it goes to this CLC at most, as if it had failed.
  std::optional<Sn> bound;
};

struct RecoveryLine {
  struct Place {
    bool stays = false;      // goes on without going back
    Sn sn = 0;               // else the CLC that it goes to
    std::size_t record = 0;  // which is kept[record]
    bool operator==(const Place& other) const = default;
  };
  std::vector<Place> clusters;

  // SNs of all clusters once the line is reached.
  PerCluster sns(const std::vector<ClusterHistory>& histories) const;
};

// Checks histories, so that none is used that contradicts itself.
// kCorrupt: CLCs are out of order, void, of another cluster, or have D of another size. Or members are at another SN
// than their last CLC.
// kBusy: a CLC is neither committed nor void. A recovery claims it as void first.
// kUsage: there are more than kMaxClusters.
[[nodiscard]] Status check_histories(const std::vector<ClusterHistory>& histories);

// Checks, then finds the line. Time and memory are linear in records times clusters. kNotFound: a cluster would have
// to go back behind its oldest CLC; the text names it.
[[nodiscard]] Status find_line(const std::vector<ClusterHistory>& histories, RecoveryLine* line);

}  // namespace shadowib::federation
