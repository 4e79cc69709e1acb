#include "shadowib/base/imports.h"

#include <elf.h>
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "shadowib/base/log.h"

namespace shadowib {
namespace {

// A library's tables, as the loader reads them.
struct Tables {
  const char* strings = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  std::span<const ElfW(Rela)> calls, data;
};

Tables tables_of(const LoadedLibrary& library) {
  Tables t;
  const ElfW(Rela)* calls = nullptr;
  const ElfW(Rela)* data = nullptr;
  std::size_t call_bytes = 0, data_bytes = 0;
  for (const ElfW(Phdr) & segment : library.segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    // The loader has turned these pointers into addresses (glibc does, musl does not: it is not a platform of ours).
    for (auto* d = reinterpret_cast<const ElfW(Dyn)*>(library.base + segment.p_vaddr); d->d_tag != DT_NULL; ++d) {
      if (d->d_tag == DT_STRTAB) t.strings = reinterpret_cast<const char*>(d->d_un.d_ptr);
      if (d->d_tag == DT_SYMTAB) t.symbols = reinterpret_cast<const ElfW(Sym)*>(d->d_un.d_ptr);
      if (d->d_tag == DT_JMPREL) calls = reinterpret_cast<const ElfW(Rela)*>(d->d_un.d_ptr);
      if (d->d_tag == DT_PLTRELSZ) call_bytes = d->d_un.d_val;
      if (d->d_tag == DT_RELA) data = reinterpret_cast<const ElfW(Rela)*>(d->d_un.d_ptr);
      if (d->d_tag == DT_RELASZ) data_bytes = d->d_un.d_val;
    }
  }
  if (t.strings == nullptr || t.symbols == nullptr) return t;
  if (calls != nullptr) t.calls = {calls, call_bytes / sizeof(ElfW(Rela))};
  if (data != nullptr) t.data = {data, data_bytes / sizeof(ElfW(Rela))};
  return t;
}

// The part that the loader made read-only when it was done (RELRO).
bool is_read_only(const LoadedLibrary& library, const void* entry) {
  const auto at = reinterpret_cast<std::uintptr_t>(entry);
  for (const ElfW(Phdr) & segment : library.segments) {
    const std::uintptr_t start = library.base + segment.p_vaddr;
    if (segment.p_type == PT_GNU_RELRO && at >= start && at < start + segment.p_memsz) return true;
  }
  return false;
}

bool replace(const LoadedLibrary& library, void** entry, void* ours) {
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

}  // namespace

LoadedLibrary library_of(const link_map& map) {
  LoadedLibrary library{map.l_name, map.l_addr, {}};
  // A shared library's first segment starts with the file, and the file with its headers.
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(map.l_addr);
  if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_phentsize != sizeof(ElfW(Phdr)))
    return library;
  library.segments = {reinterpret_cast<const ElfW(Phdr)*>(map.l_addr + header->e_phoff), header->e_phnum};
  return library;
}

const char* file_name(const char* path) {
  const char* slash = path != nullptr ? std::strrchr(path, '/') : nullptr;
  return slash != nullptr ? slash + 1 : "";
}

void turn_imports(const LoadedLibrary& library, std::span<const ImportTurn> turns) {
  const Tables t = tables_of(library);
  for (const auto& table : {t.calls, t.data})
    for (const ElfW(Rela) & relocation : table) {
      const auto type = ELF64_R_TYPE(relocation.r_info);
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
      const char* symbol = t.strings + t.symbols[ELF64_R_SYM(relocation.r_info)].st_name;
      for (const ImportTurn& turn : turns)
        if (std::strcmp(symbol, turn.symbol) == 0 &&
            !replace(library, reinterpret_cast<void**>(library.base + relocation.r_offset), turn.ours))
          log_line(LogLevel::kError, "the import of %s by %s cannot be replaced: %s", symbol, library.path,
                   std::strerror(errno));
    }
}

void turn_loaded_imports(std::span<const LibraryTurns> libraries) {
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* wanted) {
        const LoadedLibrary library{info->dlpi_name, info->dlpi_addr, {info->dlpi_phdr, info->dlpi_phnum}};
        for (const LibraryTurns& turned : *static_cast<std::span<const LibraryTurns>*>(wanted))
          if (std::string_view(file_name(info->dlpi_name)).starts_with(turned.name))
            turn_imports(library, turned.turns);
        return 0;
      },
      &libraries);
}

}  // namespace shadowib
