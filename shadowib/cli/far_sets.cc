#include "shadowib/cli/far_sets.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "hooks/imager/set/manifest.h"
#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/cli/jobs.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kTries = 3;

std::string list_path(const std::string& directory, const std::string& job) {
  return far_path(directory, job) + "/" + kFarList;
}

}  // namespace

std::vector<FarSet> sets_in_far(const std::string& directory, const std::string& job) {
  std::string text;
  std::vector<FarSet> sets;
  const std::string path = list_path(directory, job);
  if (read_file(path, &text).ok()) (void)decode_far_list(text, path, &sets).ok();
  return sets;
}

Status read_far_list(FarPlace& place, const std::string& directory, const std::string& job, const std::string& far,
                     std::vector<FarSet>* sets) {
  std::string text;
  const std::string name = job + "/" + kFarList;
  Status status;
  for (int tries = 0; tries == 0 || (tries < kTries && status.code() == Code::kCorrupt); ++tries) {  // cut short?
    status = get_text(place, name, &text);
    sets->clear();
    if (status.code() == Code::kNotFound) return {};
    if (status.ok()) status = decode_far_list(text, name, sets);
  }
  if (status.code() != Code::kCorrupt) return status;
  std::fprintf(stderr, "shadowib: %s; what this directory knows of it counts\n", status.text());
  for (FarSet set : sets_in_far(directory, job)) {
    if (set.far != far) continue;
    set.far.clear();
    add_far_set(set, sets);
  }
  return {};
}

Status far_manifest(FarPlace& place, const std::string& job, const std::string& set_id, SetManifest* manifest) {
  std::string json, sum;
  const std::string prefix = far_prefix(job, set_id);
  SHADOWIB_TRY(get_text(place, prefix + kManifestFile, &json));
  SHADOWIB_TRY(get_text(place, prefix + kManifestSumFile, &sum));
  SHADOWIB_TRY(decode_manifest(json, sum, "far:" + prefix, manifest));
  if (manifest->job == job && manifest->set_id == set_id) return {};
  return Status::of(Code::kCorrupt, 0, "far: %.200s is the manifest of another set", prefix.c_str());
}

std::vector<std::string> jobs_in_far(const std::string& directory) {
  std::vector<std::string> jobs;
  std::error_code error;
  for (fs::directory_iterator job(directory + "/far", error), end; !error && job != end; job.increment(error))
    if (!sets_in_far(directory, job->path().filename()).empty()) jobs.push_back(job->path().filename());
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

Status record_far_sets(const std::string& directory, const std::string& job, const std::vector<FarSet>& sets) {
  SHADOWIB_TRY(ensure_directory(far_path(directory, job)));
  return place_file(list_path(directory, job), encode_far_list(sets), false);
}

Status record_in_far(const std::string& directory, const std::string& job, const FarSet& set) {
  std::vector<FarSet> sets = sets_in_far(directory, job);
  add_far_set(set, &sets);
  return record_far_sets(directory, job, sets);
}

Status settings_of(const FarSet& set, const std::string& directory, const std::string& job, FarSettings* settings) {
  SHADOWIB_TRY(choose_far({}, directory, job, settings));
  settings->known = true;
  return parse_far(set.far, &settings->spec);
}

bool is_in_far(const std::string& directory, const SetManifest& manifest) {
  const std::vector<FarSet> sets = sets_in_far(directory, manifest.job);
  return std::any_of(sets.begin(), sets.end(), [&](const FarSet& set) { return set.set_id == manifest.set_id; });
}

}  // namespace shadowib::cli
