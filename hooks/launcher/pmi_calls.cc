// How we come between PMI-1 and its descriptor. Libraries that speak it have it built in and export nothing of it,
// and to look at every write of a program would cost all programs; but each asks getenv for the descriptor's number,
// before anything else. Whoever does has its imports of read, write and close turned to ours from then on, and nobody
// else.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "hooks/launcher/pmi_descriptor.h"
#include "shadowib/base/imports.h"

namespace shadowib {
namespace {

constexpr char kVariable[] = "PMI_FD";

ssize_t turned_write(int fd, const void* data, std::size_t bytes) {
  return is_pmi_descriptor(fd) ? write_pmi(data, bytes) : ::write(fd, data, bytes);
}

ssize_t turned_read(int fd, void* data, std::size_t bytes) {
  return is_pmi_descriptor(fd) ? read_pmi(data, bytes) : ::read(fd, data, bytes);
}

ssize_t turned_read_chk(int fd, void* data, std::size_t bytes, std::size_t room) {
  if (bytes > room) std::abort();  // as libc does
  return turned_read(fd, data, bytes);
}

int turned_close(int fd) {
  if (is_pmi_descriptor(fd)) forget_pmi_descriptor();
  return ::close(fd);
}

const ImportTurn kTurns[] = {
    {"write", reinterpret_cast<void*>(turned_write)},
    {"read", reinterpret_cast<void*>(turned_read)},
    {"__read_chk", reinterpret_cast<void*>(turned_read_chk)},
    {"close", reinterpret_cast<void*>(turned_close)},
};

bool holds(const dl_phdr_info& library, const void* code) {
  const auto at = reinterpret_cast<ElfW(Addr)>(code) - library.dlpi_addr;
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library.dlpi_phdr[i];
    if (segment.p_type == PT_LOAD && at >= segment.p_vaddr && at < segment.p_vaddr + segment.p_memsz) return true;
  }
  return false;
}

int turn_if_it_holds(dl_phdr_info* info, std::size_t, void* code) {
  if (!holds(*info, code)) return 0;
  const LoadedLibrary library{info->dlpi_name, info->dlpi_addr, {info->dlpi_phdr, info->dlpi_phnum}};
  if (!holds(*info, reinterpret_cast<void*>(turned_write))) turn_imports(library, kTurns);  // not ourselves
  return 1;
}

// As libc's, where it cannot be found.
char* search_environment(const char* name) {
  const std::size_t length = std::strlen(name);
  for (char** at = environ; at != nullptr && *at != nullptr; ++at)
    if (std::strncmp(*at, name, length) == 0 && (*at)[length] == '=') return *at + length + 1;
  return nullptr;
}

using Getenv = char*(const char*);
std::atomic<Getenv*> g_getenv{nullptr};

}  // namespace
}  // namespace shadowib

// Reached before constructors have run, by whatever looks for a setting of its own.
extern "C" __attribute__((visibility("default"))) char* getenv(const char* name) noexcept {
  using namespace shadowib;
  Getenv* next = g_getenv.load(std::memory_order_relaxed);
  if (next == nullptr) g_getenv = next = reinterpret_cast<Getenv*>(::dlsym(RTLD_NEXT, "getenv"));
  char* const value = next != nullptr ? next(name) : search_environment(name);
  if (value == nullptr || std::strcmp(name, kVariable) != 0) return value;
  note_pmi_descriptor(std::atoi(value));
  ::dl_iterate_phdr(turn_if_it_holds, __builtin_return_address(0));
  return value;
}
