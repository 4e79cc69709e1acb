// The trace of a federation's messages and CLCs: SHADOWIB_TRACE names a file, to which each member of a cluster
// appends what happens to it, a line each. `fedsim --check` judges it; docs/reference/formats.md has the fields.
//
// It is for tests: each line opens the file, so that no descriptor of it stays in an image. All members have to be on
// one host, whose kernel keeps the order of the lines.
#pragma once

#include <string>

#include "hooks/federation/rule.h"
#include "shadowib/base/status.h"

namespace shadowib {

// Keeps the path; "": no trace. kUsage: it is relative, or too long.
Status set_trace_path(const std::string& path);

// This member adopts a CLC: before it delivers or posts anything under its number. Does nothing without a trace.
void trace_commit(const federation::ClcRecord& record);

}  // namespace shadowib
