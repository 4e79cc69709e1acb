// --save: whether programs go on while their images are written.
#pragma once

#include <string>

#include "shadowib/cli/common.h"

namespace shadowib::cli {

void add_save_option(Command* command, std::string* save);

// The option, else SHADOWIB_SAVE, else stopped. kUsage names the variable.
Status choose_save(const std::string& save, bool* forked);

}  // namespace shadowib::cli
