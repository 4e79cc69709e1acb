// Reading manifests, and finding the sets of a directory.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/imager/set/manifest.h"
#include "hooks/job/job_directory.h"

namespace shadowib {
namespace fs = std::filesystem;
namespace {

Status read_part(const std::string& set_path, const char* file, std::string* content) {
  Status status = open_store_of(set_path)->read(set_path, file, content);
  if (status.ok() || status.error() == EACCES) return status;
  if (status.error() == ENOENT)
    return Status::of(Code::kCorrupt, ENOENT, "set %.200s has no %s: not a checkpoint set, or damaged",
                      set_path.c_str(), file);
  return Status::of(Code::kCorrupt, status.error(), "set %.150s: %.200s", set_path.c_str(), status.text());
}

}  // namespace

Status read_manifest(const std::string& set_path, SetManifest* manifest) {
  std::error_code error;
  fs::path absolute = fs::absolute(set_path, error).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();
  const std::string path = absolute;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return errno == ENOENT || errno == ENOTDIR
               ? Status::of(Code::kNotFound, errno, "no checkpoint set %.250s; `shadowib list` shows what there is",
                            path.c_str())
               : file_error(errno, "open", path);
  if (!S_ISDIR(info.st_mode))
    return Status::of(Code::kNotFound, ENOTDIR, "%.250s is a file, not a checkpoint set (a directory)", path.c_str());
  std::string job;
  std::uint32_t number = 0;
  if (parse_hidden_name(absolute.filename().string(), &job, &number))
    return Status::of(Code::kNotFound, 0, "%.250s was never committed; `shadowib gc` removes it", path.c_str());
  std::string json, sum;
  SHADOWIB_TRY(read_part(path, kManifestFile, &json));
  SHADOWIB_TRY(read_part(path, kManifestSumFile, &sum));
  bool is_near = false;
  SHADOWIB_TRY(decode_manifest(json, sum, path, manifest, &is_near));
  manifest->path = path;
  manifest->placement = {};
  if (!is_near) return {};
  if (!valid_job_name(manifest->job))
    return Status::of(Code::kCorrupt, 0, "set %.200s names no valid job", path.c_str());
  SHADOWIB_TRY(read_part(path, kPlacementFile, &json));
  return decode_placement(json, path, &manifest->placement);
}

Status list_sets(const std::string& directory, std::vector<ListedSet>* sets) {
  sets->clear();
  std::vector<StoredSet> stored;
  SHADOWIB_TRY(open_directory_store(directory)->list(&stored));
  for (const StoredSet& set : stored) {
    if (!set.committed) continue;
    ListedSet listed;
    listed.status = read_manifest(set.path, &listed.manifest);
    if (!listed.status.ok()) {
      listed.manifest = {};
      listed.manifest.job = set.job;
      listed.manifest.number = set.number;
      listed.manifest.path = set.path;
    }
    sets->push_back(std::move(listed));
  }
  // By time of creation; a set that cannot be read has none and comes first, as nothing should prefer it.
  std::sort(sets->begin(), sets->end(), [](const ListedSet& a, const ListedSet& b) {
    return std::tie(a.manifest.created, a.manifest.job, a.manifest.number) <
           std::tie(b.manifest.created, b.manifest.job, b.manifest.number);
  });
  return {};
}

}  // namespace shadowib
