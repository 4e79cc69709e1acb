// File locks as a restart finds them: free, or taken by somebody else. In commands.
#pragma once

#include <string>

#include "hooks/imager/descriptors/file_lock.h"
#include "hooks/imager/descriptors/table.h"
#include "shadowib/base/status.h"

namespace shadowib::descriptors {

// Whether the lock could be taken through `fd`, which is this command's alone. Returns 0 or an errno. Keeps no lock.
int try_lock(int fd, const FileLock& lock);

// A descriptor that the command has inherited, whose description holds this flock on the file of `fd`. -1: none.
int inherited_flock(int fd, const FileLock& lock);

// The failure of take_lock() or try_lock() by `error`. Names file, range, and holders as far as /proc shows them.
Status lock_failure(const Object& object, const FileLock& lock, int fd, int error);

}  // namespace shadowib::descriptors
