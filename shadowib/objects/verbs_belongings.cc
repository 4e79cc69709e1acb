#include "shadowib/objects/verbs_belongings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "shadowib/base/descriptors.h"

namespace shadowib {
namespace {

struct Range {
  std::uintptr_t start, end;
};
std::vector<Range> g_owned;  // as of the last image

// Without stdio, whose lock a stopped thread may hold.
bool read_maps(std::string* text) {
  const int fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (fd < 0) return false;
  char buffer[4096];
  long n;
  while ((n = ::syscall(SYS_read, fd, buffer, sizeof(buffer))) > 0) text->append(buffer, static_cast<std::size_t>(n));
  raw_close(fd);
  return n == 0;
}

// A queue of the device's each, and many: neighbours are one.
std::vector<Range> device_ranges(const std::string& maps) {
  std::vector<Range> found;
  for (std::size_t at = 0; at < maps.size();) {
    std::size_t end = maps.find('\n', at);
    if (end == std::string::npos) end = maps.size();
    const std::string line = maps.substr(at, end - at);
    at = end + 1;
    if (line.find(" /dev/infiniband/") == std::string::npos) continue;
    char* rest = nullptr;
    const std::uintptr_t from = ::strtoul(line.c_str(), &rest, 16);
    if (*rest != '-') continue;
    const std::uintptr_t to = ::strtoul(rest + 1, nullptr, 16);
    if (!found.empty() && found.back().end == from)
      found.back().end = to;
    else
      found.push_back({from, to});
  }
  return found;
}

}  // namespace

bool own_library_descriptor(const HostServices* host, int* fd) {
  const int owned = host->own_descriptor(*fd);
  if (owned < 0) return false;
  *fd = owned;
  return true;
}

void return_library_descriptor(const HostServices* host, int* fd) {
  const int owned = *fd, plain = ::fcntl(owned, F_DUPFD_CLOEXEC, 3);
  // Without a descriptor left the library closes the one we call ours, which is then called so for nothing.
  if (plain < 0) return;
  *fd = plain;
  host->close_descriptor(owned);
}

int own_device_mappings(const HostServices* host) {
  std::string maps;
  if (!read_maps(&maps)) return errno;
  std::vector<Range> now = device_ranges(maps);
  if (now.size() > kMaxOwnedMappings / 2) return E2BIG;
  for (const Range& range : g_owned) host->disown_mapping(reinterpret_cast<void*>(range.start));
  g_owned = std::move(now);
  for (const Range& range : g_owned) host->own_mapping(reinterpret_cast<void*>(range.start), range.end - range.start);
  return 0;
}

}  // namespace shadowib
