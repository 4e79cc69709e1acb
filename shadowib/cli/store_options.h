// --store and --near: where a job's images are to lie.
#pragma once

#include <string>

#include "hooks/store/store_spec.h"
#include "shadowib/cli/common.h"

namespace shadowib::cli {

struct StoreOptions {
  std::string store, near;  // as given; "": not
};

void add_store_options(Command* command, StoreOptions* options);

// The chosen store: the options, else SHADOWIB_STORE and SHADOWIB_NEAR, else what the job was started with, else
// central. *place is an absolute path for a near store, else "". Variables of another job do not count. kUsage names
// the option or variable.
Status choose_store(const StoreOptions& options, const std::string& directory, const std::string& job,
                    StoreSpec* spec, std::string* place);

// Records the store of a job for later commands.
Status record_store(const std::string& directory, const std::string& job, const StoreSpec& spec,
                    const std::string& place);

// Reads the record; *store is "" for central.
Status recorded_store(const std::string& directory, const std::string& job, std::string* store, std::string* place);

// Places where near images of the directory's jobs may lie on this host.
std::vector<std::string> near_places(const std::string& directory);

}  // namespace shadowib::cli
