// --save, --incremental and --compress: how images are written.
#pragma once

#include <string>

#include "hooks/command/coordinator.h"
#include "hooks/imager/compression.h"
#include "shadowib/cli/common.h"

namespace shadowib::cli {

void add_save_option(Command* command, std::string* save);

// The option, else SHADOWIB_SAVE, else auto with a near or automatic store, and stopped with `central`. kUsage names
// the variable.
Status choose_save(const std::string& save, bool central, SaveWay* way);

void add_incremental_option(Command* command, bool* incremental);

// The option, else SHADOWIB_INCREMENTAL (1 or 0), else no. `central`: the images go to --dir; `flushed`: sets go to a
// far place by themselves. kUsage: it is asked for, and the other two are not so.
Status choose_incremental(bool given, bool central, bool flushed, bool* incremental);

void add_compress_option(Command* command, std::string* compress);

// Whether either names one, which may be none.
bool says_compression(const std::string& compress);
// The option, else SHADOWIB_COMPRESS, else none. kUsage names the variable.
Status choose_compression(const std::string& compress, Compression* compression);

}  // namespace shadowib::cli
