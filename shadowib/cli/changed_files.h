// Files that members had open for writing, and whose length differs from the length at the checkpoint.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/descriptors.h"

namespace shadowib::cli {

// All such files of these members (none: all), by path. Reads the images' tables only.
Status changed_files(const SetManifest& manifest, const std::set<std::uint32_t>& members,
                     std::vector<ChangedFile>* files);

// "/x/log has 300 bytes, 200 at the checkpoint: restart --files roll-back cuts it".
std::string describe_change(const ChangedFile& file);

// For a restart: the files to cut, none unless it rolls back. Reports each file that has grown, and what becomes of
// it.
Status choose_files(const SetManifest& manifest, const std::set<std::uint32_t>& members, bool rolls_back,
                    const std::function<void(const std::string&)>& report, std::vector<ChangedFile>* cut);

}  // namespace shadowib::cli
