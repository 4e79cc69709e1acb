// Looking at sets in far places, and removing them from there.
#pragma once

#include <functional>
#include <string>

#include "shadowib/cli/far_sets.h"

namespace shadowib::cli {

// Whether a far place has all objects of a set. `deep`: reads each byte, else asks for sizes. kNotFound: it has no
// such set. kCorrupt names the object.
Status check_far_set(const std::string& directory, const std::string& job, const FarSet& set, bool deep);

// Removes all but the job's `keep` newest sets from each far place, after *tell has been told of each. Sets that lack
// their manifests there do not count. `dry_run`:
// tells only. A set goes by its manifest, and what a killed removal leaves is removed by the next one. A place that
// is being flushed to is left alone.
Status remove_far_sets(const std::string& directory, const std::string& job, unsigned keep, bool dry_run,
                       const std::function<void(const std::string& what)>& tell);

}  // namespace shadowib::cli
