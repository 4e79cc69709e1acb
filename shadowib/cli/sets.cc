#include "shadowib/cli/sets.h"

#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "hooks/job/job_directory.h"
#include "hooks/store/keeper_client.h"
#include "hooks/store/near_place.h"
#include "hooks/store/store.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/far_turns.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kDropNs = 10'000'000'000;

Progress* g_progress = nullptr;  // verify_set() takes a plain function

// One of the newer sets that stay survives no less.
bool outlived(const SetManifest& set, const std::vector<const SetManifest*>& sets, std::size_t first_kept) {
  return std::any_of(sets.begin() + static_cast<std::ptrdiff_t>(first_kept), sets.end(),
                     [&](const SetManifest* kept) { return replaces(kept->placement.store, set.placement.store); });
}

bool is_set(const std::string& path) {
  std::error_code error;
  return fs::exists(path + "/manifest.json", error);
}

}  // namespace

std::string newest_set(const std::string& directory, const std::string& job) {
  std::vector<StoredSet> stored;
  if (!open_directory_store(directory)->list(&stored).ok()) return {};
  std::string newest;
  std::uint32_t greatest = 0;
  for (const StoredSet& set : stored) {
    if (!set.committed || set.job != job || (set.number < greatest && !newest.empty())) continue;
    greatest = set.number;
    newest = set_name(set.job, set.number);
  }
  return newest;
}

double age_of_newest_set(const std::string& directory, const std::string& job) {
  const std::string set = newest_set(directory, job);
  struct stat info {};
  if (set.empty() || ::stat((sets_path(directory) + "/" + set + "/manifest.json").c_str(), &info) != 0) return -1;
  const std::int64_t made = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  return std::max(0.0, static_cast<double>(wall_clock_ns() - made) / 1e9);
}

Status choose_set(Common* common, const std::string& given, std::string* path) {
  std::string job;
  std::uint32_t number = 0;
  std::error_code error;
  bool is_name = parse_set_name(given, &job, &number);
  std::string named = sets_path(common->directory) + "/" + given;
  if (is_name && (fs::exists(named, error) || !fs::exists(given, error))) {
    *path = named;
    return {};
  }
  if (valid_job_name(given) && !is_set(given)) {
    const std::string newest = newest_set(common->directory, given);
    if (newest.empty() && !fs::is_directory(given, error))
      return Status::of(Code::kNotFound, 0,
                        "%.64s is no set, and no job of which there are sets in %.200s; `shadowib list` shows those",
                        given.c_str(), common->directory.c_str());
    if (!newest.empty()) {
      if (speaks_for_launch())
        std::fprintf(stderr, "shadowib: the newest set of job %s is %s\n", given.c_str(), newest.c_str());
      *path = sets_path(common->directory) + "/" + newest;
      return {};
    }
  }
  fs::path absolute = fs::absolute(given, error).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  *path = absolute;
  if (!common->directory_given && absolute.parent_path().filename() == "sets")
    common->directory = absolute.parent_path().parent_path();
  return {};
}

Status old_sets(const std::string& directory, const std::string& job, unsigned keep,
                std::vector<std::string>* paths) {
  std::vector<ListedSet> all;
  SHADOWIB_TRY(list_sets(directory, &all));
  std::map<std::string, std::vector<const SetManifest*>> by_job;
  for (const ListedSet& set : all) {
    if (!set.status.ok() && job.empty())
      std::fprintf(stderr, "shadowib: left alone: %s\n", set.status.text());
    else if (!set.status.ok())
      continue;
    else if (set.manifest.cluster)
      continue;  // clc_sets.h
    else if (job.empty() || set.manifest.job == job)
      by_job[set.manifest.job].push_back(&set.manifest);
  }
  for (auto& [name, list] : by_job) {
    std::sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->number < b->number; });
    for (std::size_t i = 0; i + keep < list.size(); ++i)
      if (keep == 0 || outlived(*list[i], list, list.size() - keep)) paths->push_back(list[i]->path);
  }
  return {};
}

Status remove_set(const std::string& path) {
  SetLease lease;
  SetManifest manifest;
  SHADOWIB_TRY(lease.take(path));
  const bool is_near = read_manifest(path, &manifest).ok() && manifest.placement.store.is_near();
  SHADOWIB_TRY(open_store_of(path)->remove(path));  // first: a set that is listed has its images
  if (is_near) {
    const std::string directory = fs::path(manifest.path).parent_path().parent_path();
    for (const KeeperInfo& keeper : live_keepers(directory, manifest.job))
      if (const Status s = ask_to_drop(directory, keeper, {manifest.placement.place, manifest.job, manifest.set_id},
                                       monotonic_ns() + kDropNs);
          !s.ok())
        std::fprintf(stderr, "shadowib: images stay until gc runs there: %s\n", s.text());
  }
  return is_near ? remove_near_set(manifest.placement.place, manifest.job, manifest.set_id) : Status();
}

Status verify_with_progress(const std::string& path, SetManifest* manifest, const std::set<std::uint32_t>& members,
                            VerifyDepth depth) {
  SHADOWIB_TRY(read_manifest(path, manifest));  // what is wrong with the name is told before any long work
  Progress progress;
  g_progress = &progress;
  progress.step("verifying " + path);
  Status status = verify_set(
      path, manifest, [](std::uint64_t done, std::uint64_t total) { g_progress->update(done, total); }, members,
      depth);
  g_progress = nullptr;
  return status;
}

}  // namespace shadowib::cli
