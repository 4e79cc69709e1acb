// `restart --job J`: clusters of a federation go back to their own checkpoints, in the job's epoch, while others run
// on.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "shadowib/cli/common.h"
#include "shadowib/command_line/hosts.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::cli {

struct RecoverRequest {
  std::string job;
  std::vector<std::string> clusters;  // count as failed; none: those of which a member has died
  bool fenced = false;                // members that do not end are gone
  int timeout_s = 60;                 // until the line is published
  double patience_s = 0;              // while nothing runs of what is sent again; 0: as long as it takes
  std::string backend;                // that they are to go on over; "": any
  std::string verbs_library;          // a file; "": as they were started with
  std::vector<std::string> words;     // options of `restart`, for each cluster's set
  // Where; none: here. Each cluster fills slots where the one before has ended, and begins anew at the list's end.
  std::vector<command_line::Host> hosts;
};

// Waits for the end of the processes that have come back. Returns the command's exit code.
int recover(const Common& common, const RecoverRequest& request);

// The hidden option by which recover() starts `restart SET` for each set: "R:MEMBERS:GENERATION".
struct RecoveryPart {
  std::uint64_t number = 0;      // of the recovery; 0: this is none
  std::uint32_t members = 0;     // that come back in all
  std::uint32_t generation = 0;  // that they have then
};
std::string encode_part(const RecoveryPart& part);
Status decode_part(const std::string& text, RecoveryPart* part);  // kUsage

// In such a command, for `members`: their content is checked, and it waits until that of all is. Clusters, and hosts'
// shares of them, take differently long. kAborted: another one has given up. Ends with the command above in any case.
Status meet_other_parts(Exchange& exchange, const std::string& epoch, const RecoveryPart& part,
                        const std::set<std::uint32_t>& members);

}  // namespace shadowib::cli
