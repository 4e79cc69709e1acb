// Which set a command means, and verifying it with progress.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/cli/common.h"

namespace shadowib::cli {

// `given` is a path, or the name `list` shows. Without --dir, a path to <D>/sets/<name> makes D the directory.
Status choose_set(Common* common, const std::string& given, std::string* path);

// verify_set() with its progress on standard error.
Status verify_with_progress(const std::string& path, SetManifest* manifest,
                            const std::set<std::uint32_t>& members = {});

}  // namespace shadowib::cli
