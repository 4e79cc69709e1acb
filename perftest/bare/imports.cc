// What UCX and Open MPI look at in the file system before they ask for devices, answered as the shim answers it
// (shadowib/entry/imports.h), or they would not find ours. There is no connection manager.
#include "shadowib/base/imports.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string_view>

#include "perftest/bare/backend.h"
#include "shadowib/abi/handlers.h"

namespace shadowib::bare {
namespace {

bool is_device_file(const char* path) { return std::string_view(path).starts_with("/dev/infiniband/uverbs"); }

int turned_access(const char* path, int mode) { return is_device_file(path) ? 0 : ::access(path, mode); }

int turned_stat(const char* path, struct stat* st) {
  if (!is_device_file(path)) return ::stat(path, st);
  *st = {};
  st->st_mode = S_IFCHR | 0600;
  return 0;
}

int turned_stat_of_class(const char* path, struct stat* st) {
  if (::stat(path, st) == 0) return 0;
  if (!std::string_view(path).ends_with("/class/infiniband") || backend() == nullptr) return -1;
  *st = {};
  st->st_mode = S_IFDIR | 0555;
  return 0;
}

const ImportTurn kOfUcx[] = {
    {"access", reinterpret_cast<void*>(turned_access)},
    {"stat", reinterpret_cast<void*>(turned_stat)},
};
const ImportTurn kOfOpenMpi[] = {{"stat", reinterpret_cast<void*>(turned_stat_of_class)}};

constexpr LibraryTurns kTurned[] = {{"libuct_ib.so", kOfUcx}, {"libmca_common_verbs.so", kOfOpenMpi}};

}  // namespace

__attribute__((constructor)) void turn_when_sysfs_is_asked_for() { shadowib_on_sysfs_path(turn_program_imports); }

void turn_program_imports() { turn_loaded_imports(kTurned); }

}  // namespace shadowib::bare
