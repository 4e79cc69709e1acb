#include "shadowib/objects/link_namespace.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

namespace shadowib {
namespace {

constexpr int kMostOpenings = 64;  // of one library: those marked as not to be unloaded take any number of closings

// Those of a namespace, libc first and without the loader, which is in all of them.
std::vector<std::string> libraries_beside(void* handle) {
  std::vector<std::string> found;
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return found;
  while (map->l_prev != nullptr) map = map->l_prev;
  for (; map != nullptr; map = map->l_next) {
    const std::string name = map->l_name;
    if (name.find("/libc.so") != std::string::npos)
      found.insert(found.begin(), name);
    else if (!name.empty() && name.find("/ld-linux") == std::string::npos)
      found.push_back(name);
  }
  return found;
}

// True if the library was open by itself, and not only as another's need, and is so once less.
bool close_once(Lmid_t where, const std::string& name) {
  auto open_again = [&] { return ::dlmopen(where, name.c_str(), RTLD_NOLOAD | RTLD_LAZY); };
  void* library = open_again();
  if (library == nullptr) return false;
  // Whatever is there after that is held by somebody: the handle outlives the next closing, which undoes ours.
  ::dlclose(library);
  library = open_again();
  if (library == nullptr) return false;
  ::dlclose(library);
  return ::dlclose(library) == 0;
}

bool g_exits = false;

}  // namespace

// The loader has its destructors called by a handler that was registered when the program began: by the last one. So
// from our library's constructor, which has run before, would be too early.
void watch_for_exit() {
  static std::atomic<bool> watched{false};
  if (!watched.exchange(true)) std::atexit([] { g_exits = true; });
}

void close_namespace_of(void* handle) {
  if (g_exits) return;
  Lmid_t where = LM_ID_BASE;
  if (::dlinfo(handle, RTLD_DI_LMID, &where) != 0 || where == LM_ID_BASE) {
    ::dlclose(handle);
    return;
  }
  const std::vector<std::string> names = libraries_beside(handle);
  // dlmopen into a namespace that has become empty never gives the loader's lock back (glibc 2.36): libc stays until
  // last.
  void* libc = names.empty() ? nullptr : ::dlmopen(where, names[0].c_str(), RTLD_NOLOAD | RTLD_LAZY);
  ::dlclose(handle);
  if (libc == nullptr) return;
  for (std::size_t n = 1; n < names.size(); ++n)
    for (int i = 0; i < kMostOpenings && close_once(where, names[n]); ++i) continue;
  ::dlclose(libc);
}

}  // namespace shadowib
