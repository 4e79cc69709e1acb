// The exit codes of --retry-on, a list as "1,5,128-255".
#pragma once

#include <bitset>
#include <string>

#include "shadowib/base/status.h"

namespace shadowib::cli {

using ExitCodes = std::bitset<256>;

// kUsage: `text` is no list of numbers from 1 to 255. 0 is no failure of anybody's.
Status parse_exit_codes(const std::string& text, ExitCodes* codes);

}  // namespace shadowib::cli
