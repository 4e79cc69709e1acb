// Files by bare system calls, for code that runs inside somebody else's process. It uses no stdio, no opendir, no
// heap of the program, and no libc entry point that the shim itself redirects.
//
// Every descriptor is owned (base/descriptors.h), also a short-lived one. It leaves the low numbers before anything
// is read or written through it, since the program may close or dup2 over these at any moment.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {

// An owned descriptor that closes itself. -1: none.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~OwnedFd() { reset(-1); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd) {
    if (fd_ >= 0) close_owned_descriptor(fd_);
    fd_ = fd;
  }
  int release() {
    int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
};

// openat(2) with O_CLOEXEC, retried on EINTR and moved among the owned descriptors. On failure empty, with errno.
OwnedFd open_owned(int directory, const char* path, int flags, mode_t mode = 0);

// Takes over a descriptor just made by another call. On failure it is closed; empty, with errno.
OwnedFd adopt_owned(const UnownedDescriptors& unowned, int fd);

// Writes or reads everything; 0 or errno.
int write_whole(int fd, std::string_view bytes);
int read_whole(int fd, std::string* bytes);

// Sets the times of access and modification to this nanosecond. The kernel's own may be those of some milliseconds.
void stamp(int fd);

// Makes each missing directory of `path` below `directory` with mode 0700 whatever the umask; 0 or errno.
// An absolute path ignores `directory`.
int make_directories(int directory, const std::string& path);

// The type of the file system that `fd` is on, as /proc/self/mountinfo has it; empty if that does not tell. Not by
// statfs(2): 9p and some kinds of FUSE pass on their server's answer.
std::string file_system_of(int fd);

// The text of an errno, from a constant table (strerror may allocate and translate).
const char* error_text(int err);

// Calls visit(name, type) for each entry except "." and ".." until it returns false; type is a DT_ constant and may
// be DT_UNKNOWN. 0 or errno.
template <typename Visit>
int for_each_entry(int fd, Visit visit) {
  struct Entry {
    std::uint64_t inode;
    std::int64_t offset;
    unsigned short length;
    unsigned char type;
    char name[];
  };
  alignas(8) char buffer[8192];
  if (::syscall(SYS_lseek, fd, 0, SEEK_SET) < 0) return errno;
  for (;;) {
    long got = ::syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
    if (got < 0) return errno;
    if (got == 0) return 0;
    for (long at = 0; at < got;) {
      auto* entry = reinterpret_cast<Entry*>(buffer + at);
      at += entry->length;
      std::string_view name(entry->name);
      if (name == "." || name == "..") continue;
      if (!visit(name, entry->type)) return 0;
    }
  }
}

}  // namespace shadowib
