#include "hooks/imager/descriptors/capture/launcher_directories.h"

#include <cstddef>
#include <cstring>

#include "hooks/imager/descriptors.h"
#include "shadowib/base/lock.h"

namespace shadowib {
namespace {

constexpr std::size_t kMost = 8, kLongest = 512;
SpinLock g_lock;
char g_directories[kMost][kLongest] SHADOWIB_GUARDED_BY(g_lock);
std::size_t g_count SHADOWIB_GUARDED_BY(g_lock) = 0;

bool is_below(std::string_view path, std::string_view directory) {
  return path.size() > directory.size() + 1 && path.starts_with(directory) && path[directory.size()] == '/';
}

}  // namespace

bool note_launcher_directory(const char* path) {
  SpinGuard guard(g_lock);
  for (std::size_t i = 0; i < g_count; ++i)
    if (std::strcmp(g_directories[i], path) == 0) return true;
  if (path[0] != '/' || path[1] == '\0' || g_count == kMost || std::strlen(path) >= kLongest) return false;
  std::strcpy(g_directories[g_count++], path);
  return true;
}

bool descriptors::is_in_launcher_directory(std::string_view path) {
  SpinGuard guard(g_lock);
  for (std::size_t i = 0; i < g_count; ++i)
    if (is_below(path, g_directories[i])) return true;
  return false;
}

}  // namespace shadowib
