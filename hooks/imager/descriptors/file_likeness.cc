#include "hooks/imager/descriptors/file_likeness.h"

namespace shadowib::descriptors {

bool has_shared_offset(const Object& o) {
  return o.kind == Kind::kFile || o.kind == Kind::kMemory || o.kind == Kind::kDirectory;
}

FileLikeness likeness_of(const Table& table, const Object& o) {
  FileLikeness likeness{table.kernel, o.path, o.device, o.inode, o.offset, o.flags, {}, false};
  for (const FileLock& lock : o.locks) {
    if (lock.kind == LockKind::kRecord) continue;
    likeness.has_flock = likeness.has_flock || lock.kind == LockKind::kFlock;
    likeness.locks.push_back({lock.exclusive, lock.taker, lock.start, lock.end});
  }
  return likeness;
}

}  // namespace shadowib::descriptors
