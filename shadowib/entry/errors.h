// Error conventions of the verbs entry points.
#pragma once

#include <errno.h>
#include <string.h>

#include "shadowib/base/log.h"
#include "shadowib/base/status.h"

namespace shadowib {

inline std::nullptr_t null_with(int error) {
  errno = error;
  return nullptr;
}

// The adapter's library has not made an object. Programs try what they may have (UCX, libfabric), so the reason is
// told where the log tells more than usual.
inline std::nullptr_t null_of_backend(const char* function, int error) {
  log_line(LogLevel::kInfo, "%s: the adapter's library answers NULL: %s", function, ::strerror(error));
  return null_with(error);
}

// A Status of ours as the program sees it: logged in words, returned as an errno.
inline int errno_from(const Status& status, const char* function) {
  log_line(LogLevel::kError, "%s: %s", function, status.text());
  return status.error() != 0 ? status.error() : EIO;
}

}  // namespace shadowib
