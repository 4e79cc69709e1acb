// Judges ends on request (end_on_request.h).
#pragma once

#include <string>

#include "shadowib/cli/common.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/supervise/lives.h"

namespace shadowib::cli {

// Whether members of that epoch were told to end, with their set saved: a member's record says so, or the exchange.
bool were_told_to_end(const Common& common, const std::string& job, const Lives& lives);

// The history has told of that end already.
void note_no_end(const std::string& directory, const std::string& job, const PastEvent& saved, const char* why);

}  // namespace shadowib::cli
