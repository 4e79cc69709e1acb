#include "hooks/federation/collection.h"

#include <algorithm>
#include <limits>

namespace shadowib::federation {

Status find_collection(const std::vector<ClusterHistory>& histories, const PerCluster& incarnations,
                       ClcCollection* collection) {
  SHADOWIB_TRY(check_histories(histories));
  const unsigned clusters = static_cast<unsigned>(histories.size());
  PerCluster oldest(clusters);
  for (unsigned i = 0; i < clusters; ++i) oldest[i] = histories[i].kept.empty() ? 0 : std::numeric_limits<Sn>::max();
  std::vector<ClusterHistory> failing = histories;
  for (unsigned failed = 0; failed < clusters; ++failed) {
    if (histories[failed].kept.empty()) continue;  // nothing has left it, and nobody depends on it
    failing[failed].running.reset();
    RecoveryLine line;
    SHADOWIB_TRY(find_line(failing, &line));
    failing[failed].running = histories[failed].running;
    for (unsigned i = 0; i < clusters; ++i)
      if (!line.clusters[i].stays) oldest[i] = std::min(oldest[i], line.clusters[i].sn);
  }
  *collection = {oldest, incarnations};
  return {};
}

std::size_t collect(const ClcCollection& collection, const PerCluster& incarnations,
                    std::vector<ClusterHistory>* histories) {
  if (collection.incarnations != incarnations) return 0;
  std::size_t removed = 0;
  for (unsigned i = 0; i < histories->size(); ++i)
    removed += std::erase_if((*histories)[i].kept,
                             [&](const ClcRecord& record) { return record.sn < collection.oldest[i]; });
  return removed;
}

}  // namespace shadowib::federation
