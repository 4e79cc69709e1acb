#include "hooks/imager/descriptors/capture/inherited.h"

#include <cstdlib>

#include "hooks/imager/descriptors.h"

namespace shadowib {
namespace {

struct Inherited {
  unsigned long long device, inode;
  int fd;  // that led there at the latest capture; -1: none did
};
constexpr int kMostInherited = 256;
Inherited g_inherited[kMostInherited];
int g_count = 0;

}  // namespace

void note_inherited(const char* list) {
  g_count = 0;
  while (list != nullptr && *list != '\0' && g_count < kMostInherited) {
    char* end = nullptr;
    Inherited one{std::strtoull(list, &end, 10), 0, -1};
    if (*end != ':') return;
    one.inode = std::strtoull(end + 1, &end, 10);
    g_inherited[g_count++] = one;
    if (*end != ',') return;
    list = end + 1;
  }
}

bool descriptors::is_inherited(int fd, const struct stat& st) {
  if (!S_ISFIFO(st.st_mode) && !S_ISSOCK(st.st_mode)) return false;
  for (int i = 0; i < g_count; ++i)
    if (g_inherited[i].device == st.st_dev && g_inherited[i].inode == st.st_ino) {
      g_inherited[i].fd = fd;
      return true;
    }
  return false;
}

void descriptors::renew_inherited() {
  int count = 0;
  for (int i = 0; i < g_count; ++i) {
    struct stat st {};
    if (g_inherited[i].fd >= 0 && ::fstat(g_inherited[i].fd, &st) == 0)
      g_inherited[count++] = {st.st_dev, st.st_ino, g_inherited[i].fd};
  }
  g_count = count;
}

}  // namespace shadowib
