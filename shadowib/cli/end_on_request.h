// A `checkpoint --kill` whose members have ended. Or that was broken off between the event of its set and its word to
// the members: the history then tells of an end on request that never came.
#pragma once

#include <string>

#include "shadowib/cli/common.h"

namespace shadowib::cli {

// If the history ends with such an end on request, and its command has gone without telling anybody: notes
// kill_failed. Before facts go away, so also before a restart and before gc. Does nothing where nobody knows.
// In supervise/broken_off.cc.
void settle_end_on_request(const Common& common, const std::string& job);

// The name of the set after which the job's last members have ended on request, by their records; "": they have not.
// Needs no exchange. In supervise/broken_off.cc.
std::string saved_by_records(const std::string& directory, const std::string& job);

}  // namespace shadowib::cli
