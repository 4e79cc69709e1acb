#include "hooks/agent/empty_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

// The least that the loader takes. The dynamic section is relocated where it lies, so that the segment is writable;
// without PT_GNU_STACK all threads' stacks would be made executable.
struct Image {
  Elf64_Ehdr header;
  Elf64_Phdr segments[3];
  Elf64_Dyn dynamic[5];
  Elf64_Sym symbol;
  char strings[8];
};

constexpr Image make_image() {
  Image image{};
  const unsigned char ident[] = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT};
  for (std::size_t i = 0; i < sizeof(ident); ++i) image.header.e_ident[i] = ident[i];
  image.header.e_type = ET_DYN;
  image.header.e_machine = EM_X86_64;
  image.header.e_version = EV_CURRENT;
  image.header.e_phoff = offsetof(Image, segments);
  image.header.e_ehsize = sizeof(Elf64_Ehdr);
  image.header.e_phentsize = sizeof(Elf64_Phdr);
  image.header.e_phnum = 3;
  constexpr std::size_t at = offsetof(Image, dynamic);
  image.segments[0] = {PT_LOAD, PF_R | PF_W, 0, 0, 0, sizeof(Image), sizeof(Image), 4096};
  image.segments[1] = {PT_DYNAMIC, PF_R | PF_W, at, at, at, sizeof(image.dynamic), sizeof(image.dynamic), 8};
  image.segments[2] = {PT_GNU_STACK, PF_R | PF_W, 0, 0, 0, 0, 0, 16};
  image.dynamic[0] = {DT_STRTAB, {offsetof(Image, strings)}};
  image.dynamic[1] = {DT_STRSZ, {sizeof(image.strings)}};
  image.dynamic[2] = {DT_SYMTAB, {offsetof(Image, symbol)}};
  image.dynamic[3] = {DT_SYMENT, {sizeof(Elf64_Sym)}};
  image.dynamic[4] = {DT_NULL, {0}};
  return image;
}

constexpr Image kImage = make_image();

// Global: closing it then changes the list of all, and waits for whoever looks something up in it.
void* open_library(const char* path) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return ::dlopen(path, RTLD_NOW | RTLD_GLOBAL);
#else
  return ::dlmopen(LM_ID_BASE, path, RTLD_NOW | RTLD_GLOBAL);  // whoever turns the program's dlopen need not know
#endif
}

// Owned, since the program's numbers stay free; -1: there is none to be had.
int memory_file() {
  UnownedDescriptors unowned;
  const int created = static_cast<int>(::syscall(SYS_memfd_create, "shadowib-empty", 1U /* MFD_CLOEXEC */));
  const int fd = created >= 0 ? unowned.own(created) : -1;
  if (created >= 0 && fd < 0) ::syscall(SYS_close, created);
  return fd;
}

}  // namespace

bool open_and_close_empty_library() {
  const int fd = memory_file();
  if (fd < 0) return false;
  void* library = nullptr;
  if (::syscall(SYS_write, fd, &kImage, sizeof(kImage)) == static_cast<long>(sizeof(kImage))) {
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    library = open_library(path);
  }
  close_owned_descriptor(fd);
  return library != nullptr && ::dlclose(library) == 0;
}

}  // namespace shadowib
