#include "shadowib/objects/system_library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace shadowib {
namespace {

// The drop-in's only task is to be found under another's name: it is linked against us and lies in a "dropin".
bool is_dropin(const std::string& directory) {
  char real[4096];
  if (::realpath(directory.c_str(), real) == nullptr) return false;
  const char* last = std::strrchr(real, '/');
  if (last == nullptr || std::strcmp(last, "/dropin") != 0) return false;
  const std::string parent(real, static_cast<std::size_t>(last - real));
  return ::access((parent + "/libshadowib.so").c_str(), F_OK) == 0 ||
         ::access((parent + "/../libshadowib.so").c_str(), F_OK) == 0;
}

}  // namespace

std::string system_library(const char* name) {
  if (std::strchr(name, '/') != nullptr) return name;
  Dl_serinfo size{};
  void* self = ::dlopen(nullptr, RTLD_LAZY);
  if (self == nullptr) return name;
  std::string found = name;
  if (::dlinfo(self, RTLD_DI_SERINFOSIZE, &size) == 0) {
    std::vector<char> memory(size.dls_size);
    auto* directories = reinterpret_cast<Dl_serinfo*>(memory.data());
    if (::dlinfo(self, RTLD_DI_SERINFOSIZE, directories) == 0 && ::dlinfo(self, RTLD_DI_SERINFO, directories) == 0)
      for (unsigned i = 0; i < directories->dls_cnt; ++i) {
        const std::string directory = directories->dls_serpath[i].dls_name;
        const std::string path = directory + "/" + name;
        if (::access(path.c_str(), R_OK) != 0 || is_dropin(directory)) continue;
        found = path;
        break;
      }
  }
  ::dlclose(self);
  return found;
}

}  // namespace shadowib
