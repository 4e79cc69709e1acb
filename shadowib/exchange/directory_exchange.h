// The embedded engine of the exchange: a directory on one machine or on a shared file system.
//
//   PATH/.exchange         marks the root; its absence is how a lost directory is told from a missing key
//   PATH/.tmp/             values being written, renamed or linked into place whole
//   PATH/.alike/           values that many members publish, of which their keys are hard links
//   PATH/.bundles/         files for small values, of which their keys are hard links (bundle.h). There are none on
//   file
//                          systems that other hosts change
//   PATH/a/b/=c            the value of key a/b/c ('=' is in no key, so a/b/c may be a prefix of other keys too)
//   PATH/a/b/@c/m          member m has entered barrier a/b/c: a hard link of the next, if there are hard links
//   PATH/a/b/@c/=          has as many bytes as members were counted at the barrier
//   PATH/a/b/@c/=3         somebody who waits for three members counts, or has counted
//   PATH/a/b/@             a bell (bell.h) for those that wait for a value in a/b, or at a barrier that it ends
// Directories 0700, files 0600. Nothing is fsynced: a job's exchange is worth nothing after a power failure.
// A file's times are set to the nanosecond it was made, so that watch() can tell two values apart whose inode number
// is the same. Readers leave the time of access alone; the other changes when a bundle gets further values.
#pragma once

#include "shadowib/exchange/exchange.h"

namespace shadowib {

// `path` may be relative to the working directory. kNotFound if absent and not `create`; kPermission if another user
// owns it or may write to it; kIo.
Status open_directory_exchange(const std::string& uri, const std::string& path, bool create,
                               std::unique_ptr<Exchange>* exchange);

}  // namespace shadowib
