// Opening again what a table records. In the restart command, and in the restored member for what needs its threads.
#pragma once

#include <fcntl.h>

#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// Flags of open(2) that a file is opened again with, and those that fcntl(2) can set later.
inline constexpr int kOpenFlags =
    O_ACCMODE | O_APPEND | O_DIRECT | O_DSYNC | O_SYNC | O_NOATIME | O_DIRECTORY | O_PATH;
inline constexpr int kSettable = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;

// Opens a regular file, directory or device as recorded; kNotFound or kRefused name the path.
Status open_path(const Object& object, int* fd);

// O_NONBLOCK, O_APPEND, O_DIRECT, O_NOATIME as recorded.
void set_status_flags(int fd, int flags);

// "cannot restore tcp 127.0.0.1:80: WHAT (ERROR)".
Status restore_failure(Code code, const Object& object, const char* what, int error);

}  // namespace shadowib::descriptors
