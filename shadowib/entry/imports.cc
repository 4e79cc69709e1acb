#include "shadowib/entry/imports.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string_view>

#include "hooks/stop.h"
#include "shadowib/base/log.h"
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

ssize_t turned_write(int fd, const void* data, std::size_t bytes) {
  return cm::is_device_file(fd) ? cm::write_device_file(fd, data, bytes) : ::write(fd, data, bytes);
}

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

struct Turn {
  const char* library;  // how its file's name begins
  const char* symbol;
  void* ours;
};
const Turn kTurns[] = {
    {"librdmacm.so", "open", reinterpret_cast<void*>(turned_open)},
    {"librdmacm.so", "open64", reinterpret_cast<void*>(turned_open)},
    {"librdmacm.so", "fstat", reinterpret_cast<void*>(turned_fstat)},
    {"librdmacm.so", "fstat64", reinterpret_cast<void*>(turned_fstat)},
    {"librdmacm.so", "write", reinterpret_cast<void*>(turned_write)},
    {"librdmacm.so", "close", reinterpret_cast<void*>(turned_close)},
    {"libuct_ib.so", "access", reinterpret_cast<void*>(turned_access)},
    {"libuct_ib.so", "stat", reinterpret_cast<void*>(turned_stat)},
    {"libuct_ib.so", "stat64", reinterpret_cast<void*>(turned_stat)},
};

// A library's tables, as the loader reads them.
struct Tables {
  const char* strings = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  const ElfW(Rela) * relocations = nullptr;
  std::size_t count = 0;
};

Tables tables_of(const dl_phdr_info& library) {
  Tables t;
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    if (library.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    // The loader has turned these pointers into addresses (glibc does, musl does not: it is not a platform of ours).
    for (auto* d = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + library.dlpi_phdr[i].p_vaddr);
         d->d_tag != DT_NULL; ++d) {
      if (d->d_tag == DT_STRTAB) t.strings = reinterpret_cast<const char*>(d->d_un.d_ptr);
      if (d->d_tag == DT_SYMTAB) t.symbols = reinterpret_cast<const ElfW(Sym)*>(d->d_un.d_ptr);
      if (d->d_tag == DT_JMPREL) t.relocations = reinterpret_cast<const ElfW(Rela)*>(d->d_un.d_ptr);
      if (d->d_tag == DT_PLTRELSZ) t.count = d->d_un.d_val / sizeof(ElfW(Rela));
    }
  }
  return t;
}

// The part that the loader made read-only when it was done (RELRO).
bool is_read_only(const dl_phdr_info& library, const void* entry) {
  const auto at = reinterpret_cast<std::uintptr_t>(entry);
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    const auto& segment = library.dlpi_phdr[i];
    const std::uintptr_t start = library.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_GNU_RELRO && at >= start && at < start + segment.p_memsz) return true;
  }
  return false;
}

bool replace(const dl_phdr_info& library, void** entry, void* ours) {
  if (*entry == ours) return true;
  if (!is_read_only(library, entry)) {
    *entry = ours;
    return true;
  }
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto* start = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(entry) & ~(page - 1));
  if (::mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  *entry = ours;
  return ::mprotect(start, page, PROT_READ) == 0;
}

int turn(dl_phdr_info* library, std::size_t, void*) {
  const char* slash = library->dlpi_name != nullptr ? std::strrchr(library->dlpi_name, '/') : nullptr;
  const std::string_view name = slash != nullptr ? slash + 1 : "";
  const auto concerns = [&](const Turn& turn) { return name.starts_with(turn.library); };
  if (std::none_of(std::begin(kTurns), std::end(kTurns), concerns)) return 0;
  const Tables t = tables_of(*library);
  for (std::size_t i = 0; i < t.count; ++i) {
    const char* symbol = t.strings + t.symbols[ELF64_R_SYM(t.relocations[i].r_info)].st_name;
    for (const Turn& wanted : kTurns)
      if (concerns(wanted) && std::strcmp(symbol, wanted.symbol) == 0 &&
          !replace(*library, reinterpret_cast<void**>(library->dlpi_addr + t.relocations[i].r_offset), wanted.ours))
        log_line(LogLevel::kError, "the import of %s by %s cannot be replaced: %s", symbol, library->dlpi_name,
                 std::strerror(errno));
  }
  return 0;
}

}  // namespace

void turn_imports() { ::dl_iterate_phdr(turn, nullptr); }

}  // namespace shadowib
