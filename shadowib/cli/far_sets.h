// Copying sets to a far place, and bringing them back.
#pragma once

#include <string>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "shadowib/cli/far_options.h"

namespace shadowib::cli {

// A flush has a lease on its set, and so has a command that removes it: neither begins while the other is under way.
// A lease ends with its process.
class SetLease {
 public:
  SetLease() = default;
  ~SetLease();
  SetLease(const SetLease&) = delete;
  SetLease& operator=(const SetLease&) = delete;
  // kBusy: another process has it.
  Status take(const std::string& set_path);

 private:
  std::string path_;
  int fd_ = -1;
};

// One flush of a job at a time. kBusy unless `wait`.
class FlushTurn {
 public:
  FlushTurn() = default;
  ~FlushTurn();
  FlushTurn(const FlushTurn&) = delete;
  FlushTurn& operator=(const FlushTurn&) = delete;
  Status take(const std::string& directory, const std::string& job, bool wait);
  static bool taken(const std::string& directory, const std::string& job);

 private:
  int fd_ = -1;
};

// Copies a set to the place and lists it there and here. kBusy: it is being removed.
Status flush_set(const std::string& directory, const std::string& set_path, const FarSettings& settings,
                 FlushReport* report);

// Flushes the sets that are due and not in the place yet, newest first, unless another flush of the job does so, or
// is about to. `wait`: after that one. The first failure of the place is the last try.
Status flush_due(const std::string& directory, const std::string& job, const FarSettings& settings, bool wait);
// Starts `shadowib flush` with these words as a process of its own, at the lowest priority and on any processor.
Status start_flush(const std::string& directory, std::vector<std::string> words);

// The job's sets that flushes have brought to far places, as DIR knows it. An unreadable list is empty.
std::vector<FarSet> sets_in_far(const std::string& directory, const std::string& job);
bool is_in_far(const std::string& directory, const SetManifest& manifest);

// The jobs that have sets in far places.
std::vector<std::string> jobs_in_far(const std::string& directory);
// Records what DIR knows of a job's sets in far places.
Status record_far_sets(const std::string& directory, const std::string& job, const std::vector<FarSet>& sets);
// The job's settings with the place of a set.
Status settings_of(const FarSet& set, const std::string& directory, const std::string& job, FarSettings* settings);
// The place's own list. One that is damaged is made again from what DIR knows.
Status read_far_list(FarPlace& place, const std::string& directory, const std::string& job, const std::string& far,
                     std::vector<FarSet>* sets);
// The manifest that a far place has of a set. kNotFound: it has none. kCorrupt: it is another set's.
Status far_manifest(FarPlace& place, const std::string& job, const std::string& set_id, SetManifest* manifest);

// Brings a whole set back into DIR. `number` 0: the newest of the job. *path is its new place. kNotFound: it is not
// there, or (ESRCH) no far place is known.
Status fetch_set(const std::string& directory, const std::string& job, std::uint32_t number,
                 const FarOptions& options, std::string* path);
// Brings back those images of a set in DIR that are lost or damaged here: of `members`, of all if none are named.
// *fetched counts them.
Status fetch_images(const std::string& directory, const SetManifest& manifest, const std::set<std::uint32_t>& members,
                    const FarOptions& options, std::size_t* fetched);
// True while a fetch fills a staging directory of the job.
bool fetch_running(const std::string& directory, const std::string& job);

}  // namespace shadowib::cli
