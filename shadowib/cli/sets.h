// Which set a command means, and verifying it with progress.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/cli/common.h"

namespace shadowib::cli {

// `given` is a path, the name `list` shows, or a job, whose newest set is meant and told. Without --dir, a path to
// <D>/sets/<name> makes D the directory. kNotFound: none of these.
Status choose_set(Common* common, const std::string& given, std::string* path);

// The name of the job's set with the greatest number, "" if it has none.
std::string newest_set(const std::string& directory, const std::string& job);

// Seconds since the job's newest set was committed, by its directory's time; -1 if it has none.
double age_of_newest_set(const std::string& directory, const std::string& job);

// The sets of `job`, or of each job if that is empty, that are older than its `keep` newest. A set stays that
// survives more than each newer one that stays (store_spec.h). Sets of one cluster are none of them (clc_sets.h).
// Those that cannot be read are none of them, and told of on standard error if all jobs are meant.
Status old_sets(const std::string& directory, const std::string& job, unsigned keep, std::vector<std::string>* paths);

// Removes a set, and what this host has of its images. kBusy: it is being flushed.
Status remove_set(const std::string& path);

// verify_set() with its progress on standard error.
Status verify_with_progress(const std::string& path, SetManifest* manifest,
                            const std::set<std::uint32_t>& members = {},
                            VerifyDepth depth = VerifyDepth::kEverything);

}  // namespace shadowib::cli
