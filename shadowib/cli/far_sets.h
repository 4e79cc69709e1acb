// The sets of a far place, as DIR knows them and as the place does.
#pragma once

#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/cli/far_options.h"

namespace shadowib::cli {

// The job's sets that flushes have brought to far places, as DIR knows it. An unreadable list is empty.
std::vector<FarSet> sets_in_far(const std::string& directory, const std::string& job);
bool is_in_far(const std::string& directory, const SetManifest& manifest);

// The jobs that have sets in far places.
std::vector<std::string> jobs_in_far(const std::string& directory);
// Records what DIR knows of a job's sets in far places.
Status record_far_sets(const std::string& directory, const std::string& job, const std::vector<FarSet>& sets);
Status record_in_far(const std::string& directory, const std::string& job, const FarSet& set);
// The job's settings with the place of a set.
Status settings_of(const FarSet& set, const std::string& directory, const std::string& job, FarSettings* settings);
// The place's own list. One that is damaged is made again from what DIR knows.
Status read_far_list(FarPlace& place, const std::string& directory, const std::string& job, const std::string& far,
                     std::vector<FarSet>* sets);
// The manifest that a far place has of a set. kNotFound: it has none. kCorrupt: it is another set's.
Status far_manifest(FarPlace& place, const std::string& job, const std::string& set_id, SetManifest* manifest);

}  // namespace shadowib::cli
