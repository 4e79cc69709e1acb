#include "hooks/vdso_range.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace shadowib {

VdsoRange find_vdso() {
  const int fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (fd < 0) return {};
  VdsoRange found;
  char buffer[8192 + 1];
  std::size_t kept = 0;  // the beginning of a line that the last reading cut
  for (long n; found.end == 0 && (n = ::syscall(SYS_read, fd, buffer + kept, sizeof(buffer) - 1 - kept)) > 0;) {
    const std::size_t bytes = kept + static_cast<std::size_t>(n);
    buffer[bytes] = 0;
    char* line = buffer;
    for (char* end; (end = static_cast<char*>(std::memchr(line, '\n', buffer + bytes - line))) != nullptr;
         line = end + 1) {
      *end = 0;
      if (std::strstr(line, " [vdso]") == nullptr) continue;
      char* dash = nullptr;
      found.start = std::strtoull(line, &dash, 16);
      found.end = std::strtoull(dash + 1, nullptr, 16);
      break;
    }
    kept = static_cast<std::size_t>(buffer + bytes - line);
    if (kept == sizeof(buffer) - 1) kept = 0;  // a path longer than any: not the line we look for
    std::memmove(buffer, line, kept);
  }
  ::syscall(SYS_close, fd);
  return found;
}

}  // namespace shadowib
