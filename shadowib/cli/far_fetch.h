// Bringing sets and images back from a far place.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/cli/far_options.h"

namespace shadowib::cli {

// Brings a whole set back into DIR. `number` 0: the newest of the job. *path is its new place. kNotFound: it is not
// there, or (ESRCH) no far place is known.
Status fetch_set(const std::string& directory, const std::string& job, std::uint32_t number,
                 const FarOptions& options, std::string* path);
// Brings back those images of a set in DIR that are lost or damaged here: of `members`, of all if none are named.
// *fetched counts them.
Status fetch_images(const std::string& directory, const SetManifest& manifest, const std::set<std::uint32_t>& members,
                    const FarOptions& options, std::size_t* fetched);
}  // namespace shadowib::cli
