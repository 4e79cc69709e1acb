// --store, --near and --survive: where a job's images are to lie.
#pragma once

#include <string>
#include <vector>

#include "hooks/store/store_spec.h"
#include "shadowib/cli/common.h"

namespace shadowib::cli {

struct StoreOptions {
  std::string store, near;  // as given; "": not
  int survive = -1;         // as given; -1: not
  bool given() const { return !store.empty() || !near.empty() || survive >= 0; }
};

void add_store_options(Command* command, StoreOptions* options);

// The value of --store that leaves the choice to each checkpoint.
inline constexpr char kAutoStore[] = "auto";

struct ChosenStore {
  bool automatic = false;
  StoreSpec spec;     // unless automatic
  std::string place;  // of a near store; as given, or "", if automatic
  int survive = 1;    // if automatic

  bool is_central() const { return !automatic && !spec.is_near(); }
  std::string text() const { return automatic ? kAutoStore : spec.text(); }
};

// The chosen store: the options, else SHADOWIB_STORE, SHADOWIB_NEAR and SHADOWIB_SURVIVE, else what the job was
// started with, else central. The job's place counts for another store of its kind, too. A place is an absolute path.
// Variables of another job do not count. kUsage names the option or variable.
Status choose_store(const StoreOptions& options, const std::string& directory, const std::string& job,
                    ChosenStore* chosen);
// Whether this host can take images of it. As check_near_place() has it.
Status check_store_here(const ChosenStore& chosen);
// The places for memory and disk, of an automatic one: `place` is one of them, by what it lies on.
Status places_of(const ChosenStore& chosen, std::string* mem, std::string* disk);

// Sets SHADOWIB_STORE, SHADOWIB_NEAR and SHADOWIB_SURVIVE for a program's own checkpoints.
void export_store(const ChosenStore& chosen);
// Records the store of a job for later commands.
Status record_store(const std::string& directory, const std::string& job, const ChosenStore& chosen);
// Reads the record; *store is "" for central.
Status recorded_store(const std::string& directory, const std::string& job, std::string* store, std::string* place);

// Places where near images of the directory's jobs may lie on this host.
std::vector<std::string> near_places(const std::string& directory);

}  // namespace shadowib::cli
