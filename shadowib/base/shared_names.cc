#include "shadowib/base/shared_names.h"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

namespace shadowib {
namespace {

// Attributes that come from the server show a client that a directory has changed, and that it has to forget its
// names.
bool ask_server(int at, const char* path) {
  struct statx answer;
  return ::syscall(SYS_statx, at, path, AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_MTIME | STATX_CTIME, &answer) == 0;
}

}  // namespace

void revalidate_directory(int at, std::string_view directory) {
  char path[PATH_MAX];
  if (directory.size() >= sizeof(path)) return;
  std::memcpy(path, directory.data(), directory.size());
  path[directory.size()] = '\0';
  const int saved = errno;
  if (!ask_server(at, path) && errno == ENOENT) {
    // From the top, since each may have been missing when it was looked for before.
    bool there = ask_server(at, path[0] == '/' ? "/" : "");
    for (std::size_t end = 1; there && end <= directory.size(); ++end) {
      if (end < directory.size() && path[end] != '/') continue;
      path[end] = '\0';
      there = ask_server(at, path);
      path[end] = end < directory.size() ? '/' : '\0';
    }
  }
  errno = saved;
}

void revalidate_parent(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return revalidate_directory(AT_FDCWD, "");
  revalidate_directory(AT_FDCWD, slash == 0 ? std::string_view("/") : path.substr(0, slash));
}

}  // namespace shadowib
