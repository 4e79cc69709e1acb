// --far, --flush, --flush-rate and --far-timeout: where a job's sets are copied to, which of them, and how fast.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "hooks/store/far_set.h"
#include "shadowib/cli/common.h"

namespace shadowib::cli {

struct FarOptions {
  std::string far, flush;  // as given; "": not
  double rate = 0;         // bytes a second; 0: not given
  double timeout_s = 0;    // 0: not given
  bool given() const { return !far.empty() || !flush.empty() || rate > 0 || timeout_s > 0; }
};

// `automatic`: the command's checkpoints are flushed by themselves, so that --flush means something.
void add_far_options(Command* command, FarOptions* options, bool automatic);

struct FarSettings {
  FarSpec spec;
  bool known = false;      // there is a far place
  unsigned every = 0;      // every n-th set is flushed by itself; 0: none
  std::uint32_t from = 0;  // of the sets from this number on
  double rate = 0;         // bytes a second; 0: no limit
  double timeout_s = 60;   // how long a command may move no byte

  std::unique_ptr<FarPlace> open() const { return open_far(spec, static_cast<int>(timeout_s * 1000)); }
  bool is_due(std::uint32_t number) const { return known && every > 0 && number >= from && number % every == 0; }
};

// The options, else SHADOWIB_FAR and SHADOWIB_FLUSH, else the record of the job, each by itself. Variables of another
// job do not count. kUsage names the option or variable.
Status choose_far(const FarOptions& options, const std::string& directory, const std::string& job,
                  FarSettings* settings);

// Records the settings for later commands, or removes the record if there is no far place.
Status record_far(const std::string& directory, const std::string& job, const FarSettings& settings);

// For `run`: what an earlier job of that name was started with does not count, and neither do its sets. The place is
// checked.
Status take_far(const FarOptions& options, const std::string& directory, const std::string& job,
                FarSettings* settings);

// "all", "none" or a number.
std::string flush_text(unsigned every);

// DIR/far/<job>: the record, the list of the job's sets in far places, and locks. It outlives the job's directory.
std::string far_path(const std::string& directory, const std::string& job);

}  // namespace shadowib::cli
