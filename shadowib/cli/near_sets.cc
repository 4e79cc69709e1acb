#include "shadowib/cli/near_sets.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/job_directory.h"
#include "hooks/store/near_place.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/store_options.h"

namespace shadowib::cli {

// In this order (docs/internals/store.md): images, locks, sets.
Status collect_near_images(const std::string& directory, const std::string& job, bool dry_run,
                           std::vector<std::string>* removed) {
  std::vector<NearSet> images;
  for (const std::string& place : near_places(directory)) SHADOWIB_TRY(list_near_sets(place, directory, &images));
  std::erase_if(images, [&](const NearSet& set) {
    return (!job.empty() && set.job != job) || checkpoint_running(directory, set.job);
  });
  if (images.empty()) return {};
  if (std::error_code error; !std::filesystem::is_directory(sets_path(directory), error))
    return Status::of(
        Code::kNotFound, ENOENT,
        "%.120s has no sets, but their images in %.80s, which stay. Is its file system mounted? If it is "
        "gone for good, remove them by hand",
        directory.c_str(), images[0].place.c_str());
  std::vector<ListedSet> sets;
  SHADOWIB_TRY(list_sets(directory, &sets));
  for (const NearSet& image : images) {
    const bool wanted = std::any_of(sets.begin(), sets.end(), [&image](const ListedSet& set) {
      return set.status.ok() ? set.manifest.set_id == image.set_id : set.manifest.job == image.job;
    });
    if (wanted) {
      SHADOWIB_TRY(remove_parts(image.path, dry_run, removed));
      continue;
    }
    if (!dry_run) SHADOWIB_TRY(remove_near_set(image.place, image.job, image.set_id));
    removed->push_back(image.path);
  }
  return {};
}

}  // namespace shadowib::cli
