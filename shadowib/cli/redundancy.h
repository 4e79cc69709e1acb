// Whether a job's newest set has its copies and parities, as far as keepers tell within a short time.
#pragma once

#include <cstdint>
#include <string>

#include "shadowib/base/json_value.h"

namespace shadowib::cli {

// Asks all keepers at once, and looks on this host, at sizes alone: `verify` reads the bytes. Null unless the set has
// a store with copies or parities.
Json look_at_redundancy(const std::string& directory, const std::string& job, std::int64_t wait_ns);
void print_redundancy(const Json& redundancy);

}  // namespace shadowib::cli
