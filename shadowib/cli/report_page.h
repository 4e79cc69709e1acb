// A job's history as one HTML file: no script, nothing from elsewhere, readable in light and dark.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/cli/history.h"

namespace shadowib::cli {

// `events`: as read_history gives them, not empty. `now_ms`: since 1970. 10^4 events make less than 500 kB.
std::string report_page(const std::string& directory, const std::string& job, const std::vector<PastEvent>& events,
                        std::int64_t now_ms);

}  // namespace shadowib::cli
