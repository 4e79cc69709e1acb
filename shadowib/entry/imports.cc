#include "shadowib/entry/imports.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "hooks/threads/stop.h"
#include "shadowib/abi/handlers.h"
#include "shadowib/base/imports.h"
#include "shadowib/cm/device_file.h"
#include "shadowib/objects/registry.h"

namespace shadowib {
namespace {

// Whether a device of ours has that file name.
bool is_shadowed(const char* file) {
  Inside inside;
  SpinGuard guard(registry().lock);
  for (const ShadowDevice* device : registry().devices)
    if (std::strcmp(device->device.dev_name, file) == 0) return true;
  return false;
}

constexpr char kDeviceFile[] = "/dev/infiniband/rdma_cm";

int turned_open(const char* path, int flags, ...) {
  if (std::strcmp(path, kDeviceFile) == 0) return cm::open_device_file();
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return ::open(path, flags, mode);
}

// librdmacm compares the file with what the kernel says the device is, where there is one.
int turned_fstat(int fd, struct stat* st) {
  if (!cm::is_device_file(fd)) return ::fstat(fd, st);
  if (::stat(kDeviceFile, st) != 0) *st = {};
  st->st_mode = S_IFCHR | 0600;
  return 0;
}

ssize_t turned_write(int fd, const void* data, std::size_t bytes) { return cm::write_any_file(fd, data, bytes); }

int turned_close(int fd) { return cm::is_device_file(fd) ? cm::close_device_file(fd) : ::close(fd); }

// UCX takes a device whose file it cannot use for one that is not there: it looks whether that is a device's and may
// be opened, and leaves the rest to libibverbs.
bool is_file_of_ours(const char* path) {
  constexpr char kDirectory[] = "/dev/infiniband/";
  constexpr std::size_t kBytes = sizeof(kDirectory) - 1;
  return std::strncmp(path, kDirectory, kBytes) == 0 && is_shadowed(path + kBytes);
}

int turned_access(const char* path, int mode) { return is_file_of_ours(path) ? 0 : ::access(path, mode); }

int turned_stat(const char* path, struct stat* st) {
  if (!is_file_of_ours(path)) return ::stat(path, st);
  if (::stat(path, st) != 0) *st = {};
  st->st_mode = S_IFCHR | 0600;
  return 0;
}

// Open MPI takes a machine without this directory for one without adapters, before it asks for any.
int turned_stat_of_class(const char* path, struct stat* st) {
  constexpr std::string_view kClass = "/class/infiniband";
  if (::stat(path, st) == 0) return 0;
  if (!std::string_view(path).ends_with(kClass)) return -1;
  const int error = errno;
  int devices = 0;
  ibv_device** const list = shadowib_ibv_get_device_list(&devices);
  if (list != nullptr) shadowib_ibv_free_device_list(list);
  errno = error;
  if (devices == 0) return -1;
  *st = {};
  st->st_mode = S_IFDIR | 0555;
  return 0;
}

const ImportTurn kOfConnectionManager[] = {
    {"open", reinterpret_cast<void*>(turned_open)},   {"open64", reinterpret_cast<void*>(turned_open)},
    {"fstat", reinterpret_cast<void*>(turned_fstat)}, {"fstat64", reinterpret_cast<void*>(turned_fstat)},
    {"write", reinterpret_cast<void*>(turned_write)}, {"close", reinterpret_cast<void*>(turned_close)},
};
const ImportTurn kOfUcx[] = {
    {"access", reinterpret_cast<void*>(turned_access)},
    {"stat", reinterpret_cast<void*>(turned_stat)},
    {"stat64", reinterpret_cast<void*>(turned_stat)},
};
const ImportTurn kOfOpenMpi[] = {
    {"stat", reinterpret_cast<void*>(turned_stat_of_class)},
    {"stat64", reinterpret_cast<void*>(turned_stat_of_class)},
};

constexpr LibraryTurns kTurned[] = {
    {"librdmacm.so", kOfConnectionManager},
    {"libuct_ib.so", kOfUcx},
    {"libmca_common_verbs.so", kOfOpenMpi},
};

}  // namespace

__attribute__((constructor)) void turn_when_sysfs_is_asked_for() { shadowib_on_sysfs_path(turn_program_imports); }

void turn_program_imports() { turn_loaded_imports(kTurned); }

}  // namespace shadowib
