// The embedded engine of the exchange: a directory on one machine or on a shared file system.
//
//   PATH/.exchange         marks the root; its absence is how a lost directory is told from a missing key
//   PATH/.tmp/             values being written, renamed or linked into place whole
//   PATH/a/b/=c            the value of key a/b/c ('=' is in no key, so a/b/c may be a prefix of other keys too)
//   PATH/a/b/@c/m          member m has entered barrier a/b/c
// Directories 0700, files 0600. Nothing is fsynced: a job's exchange is worth nothing after a power failure.
// A value's modification time is set to the nanosecond it was published, so that watch() can tell two values apart
// whose inode number is the same.
#pragma once

#include "shadowib/exchange/exchange.h"

namespace shadowib {

// `path` may be relative to the working directory. kNotFound if absent and not `create`; kPermission if another user
// owns it or may write to it; kIo.
Status open_directory_exchange(const std::string& uri, const std::string& path, bool create,
                               std::unique_ptr<Exchange>* exchange);

}  // namespace shadowib
