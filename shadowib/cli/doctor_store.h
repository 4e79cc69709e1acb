// Whether this host could take images of a store.
#pragma once

#include "shadowib/cli/common.h"
#include "shadowib/cli/machine.h"
#include "shadowib/cli/store_options.h"

namespace shadowib::cli {

// Judges --store and --near. kUsage: they name no store.
Status examine_store(const StoreOptions& options, const Common& common, Findings* findings);

}  // namespace shadowib::cli
