#include "shadowib/base/mappings.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr std::size_t kLongestLine = 8192;  // a path has 4096 bytes, and \012 for a line's end in it

// "START-END rwxp OFFSET DEVICE INODE   NAME"
bool parse(const char* line, Mapping* mapping) {
  char* rest = nullptr;
  mapping->start = std::strtoull(line, &rest, 16);
  if (*rest != '-') return false;
  mapping->end = std::strtoull(rest + 1, &rest, 16);
  const char* at = rest;
  if (rest[0] != ' ' || rest[1] == '\0' || rest[2] == '\0') return false;
  mapping->readable = rest[1] == 'r';
  mapping->writable = rest[2] == 'w';
  mapping->executable = rest[3] == 'x';
  for (int field = 0; field < 4; ++field) {
    at += std::strspn(at, " ");
    if (field == 1) mapping->offset = std::strtoull(at, nullptr, 16);
    if (field == 3) mapping->inode = std::strtoull(at, nullptr, 10);
    at += std::strcspn(at, " ");
  }
  mapping->name = at + std::strspn(at, " ");
  return true;
}

}  // namespace

int visit_mappings(bool (*visit)(const Mapping& mapping, void* arg), void* arg) {
  UnownedDescriptors unowned;
  const int fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (fd < 0) return errno;
  char buffer[kLongestLine];
  std::size_t kept = 0;  // the beginning of a line whose end has not been read
  bool more = true;
  long n = 0;
  while (more && (n = ::syscall(SYS_read, fd, buffer + kept, sizeof(buffer) - kept)) > 0) {
    const std::size_t bytes = kept + static_cast<std::size_t>(n);
    char *line = buffer, *end;
    while (more && (end = static_cast<char*>(std::memchr(line, '\n', buffer + bytes - line))) != nullptr) {
      *end = '\0';
      Mapping mapping;
      more = !parse(line, &mapping) || visit(mapping, arg);
      line = end + 1;
    }
    kept = static_cast<std::size_t>(buffer + bytes - line);
    std::memmove(buffer, line, kept);
  }
  const int error = n < 0 ? errno : 0;
  ::syscall(SYS_close, fd);
  return error;
}

}  // namespace shadowib
