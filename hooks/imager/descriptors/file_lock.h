// File locks: read from what the kernel tells of a descriptor, described and taken. No program heap.
#pragma once

#include <fcntl.h>

#include <string>
#include <string_view>
#include <vector>

#include "hooks/imager/descriptors/table.h"

namespace shadowib::descriptors {

// One line of /proc/locks, or of fdinfo behind "lock:": "1: POSIX  ADVISORY  WRITE 77 fe:00:1234 8 15".
struct LockLine {
  std::string_view kind;  // as the kernel names it
  std::int32_t pid = 0;   // who took the lock; -1: not told
  std::uint64_t inode = 0;
  FileLock lock;  // kNone: a lease, or a lock of a kind that no table has
};
// False for a request that waits, and for a line of another form. Source: proc_locks(5), fs/locks.c.
bool parse_lock(std::string_view line, LockLine* parsed);

// The locks that fdinfo tells of. *unknown: the kernel's name of a lease, or of a lock of an unknown kind; else
// empty.
void read_locks(std::string_view info, std::vector<FileLock>* locks, std::string* unknown);

// "exclusive flock", "shared record lock of bytes 8 to 15".
std::string describe_lock(const FileLock& lock);

// Takes the lock through `fd` without waiting. Returns 0, or the errno: EAGAIN if another lock is in the way.
int take_lock(int fd, const FileLock& lock);

// F_SETLK's and F_OFD_SETLK's form of a lock that is no flock.
struct flock as_range(const FileLock& lock);

}  // namespace shadowib::descriptors
