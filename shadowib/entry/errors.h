// Error conventions of the verbs entry points.
#pragma once

#include <errno.h>

#include "shadowib/base/log.h"
#include "shadowib/base/status.h"

namespace shadowib {

inline std::nullptr_t null_with(int error) {
  errno = error;
  return nullptr;
}

// A Status of ours as the program sees it: logged in words, returned as an errno.
inline int errno_from(const Status& status, const char* function) {
  log_line(LogLevel::kError, "%s: %s", function, status.text());
  return status.error() != 0 ? status.error() : EIO;
}

}  // namespace shadowib
