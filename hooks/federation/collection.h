// Which CLCs no recovery will ever need: the garbage collection of a federation.
//
// A failure of each cluster is simulated, and the furthest CLC that each cluster may go back to is kept, with all
// above it. Since the lesser one of two lines is a line, that holds for any number of clusters that fail at once.
//
// Source: as in rule.h, section 3.5.
#pragma once

#include <vector>

#include "hooks/federation/line.h"

namespace shadowib::federation {

struct ClcCollection {
  PerCluster oldest;        // of each cluster the oldest CLC that is still needed; those below may go
  PerCluster incarnations;  // it holds while clusters are of these
};

// Checks histories as find_line() does, then finds the collection. A cluster that has failed counts as failed in each
// simulation. `incarnations` are those under which the histories were read; hold the recovery lock meanwhile.
// kNotFound: a failure would leave no line; nothing may go then.
[[nodiscard]] Status find_collection(const std::vector<ClusterHistory>& histories, const PerCluster& incarnations,
                                     ClcCollection* collection);

// Removes what `collection` lets go from histories in memory, if the clusters are still of its incarnations. Returns
// the number of records that went: 0 for a collection of the past.
std::size_t collect(const ClcCollection& collection, const PerCluster& incarnations,
                    std::vector<ClusterHistory>* histories);

}  // namespace shadowib::federation
