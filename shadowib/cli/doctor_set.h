// Whether a set could be restarted on this machine.
#pragma once

#include "shadowib/cli/common.h"
#include "shadowib/cli/machine.h"

namespace shadowib::cli {

// `given` is a path or a name, as `restart` takes it. Pages are not verified (that is `verify`), nothing is started.
Findings examine_set(const Common& common, const std::string& given);

}  // namespace shadowib::cli
