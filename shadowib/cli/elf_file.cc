#include "shadowib/cli/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace shadowib::cli {
namespace {

// A file's bytes, bounds checked.
struct Bytes {
  const char* data;
  std::uint64_t size;

  template <typename T>
  bool get(std::uint64_t at, T* out) const {
    if (at > size || size - at < sizeof(T)) return false;
    std::memcpy(out, data + at, sizeof(T));
    return true;
  }
  std::string text(std::uint64_t at, std::uint64_t limit) const {
    if (at >= size) return {};
    return std::string(data + at, ::strnlen(data + at, std::min(limit, size - at)));
  }
};

// The place in the file of a virtual address; `size` of the file if there is none.
std::uint64_t offset_of(const Bytes& file, const std::vector<Elf64_Phdr>& segments, std::uint64_t address) {
  for (const Elf64_Phdr& s : segments)
    if (s.p_type == PT_LOAD && address >= s.p_vaddr && address - s.p_vaddr < s.p_filesz)
      return s.p_offset + (address - s.p_vaddr);
  return file.size;
}

// How many dynamic symbols there are: the section table says so, and a stripped file has the strings right behind.
std::uint64_t symbol_count(const Bytes& file, std::uint64_t symbols, std::uint64_t strings) {
  Elf64_Ehdr header{};
  if (!file.get(0, &header)) return 0;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section{};
    if (!file.get(header.e_shoff + i * sizeof(section), &section)) break;
    if (section.sh_type == SHT_DYNSYM && section.sh_offset == symbols) return section.sh_size / sizeof(Elf64_Sym);
  }
  return strings > symbols ? (strings - symbols) / sizeof(Elf64_Sym) : 0;
}

void read_undefined(const Bytes& file, std::uint64_t symbols, std::uint64_t strings, ElfFacts* facts) {
  const std::uint64_t count = symbol_count(file, symbols, strings);
  Elf64_Sym symbol{};
  for (std::uint64_t i = 1; i < count && file.get(symbols + i * sizeof(symbol), &symbol); ++i)
    if (symbol.st_shndx == SHN_UNDEF && symbol.st_name != 0)
      facts->undefined.push_back(file.text(strings + symbol.st_name, 4096));
}

void read_dynamic(const Bytes& file, const std::vector<Elf64_Phdr>& segments, const Elf64_Phdr& dynamic,
                  ElfFacts* facts) {
  std::vector<std::uint64_t> needed;
  std::uint64_t strings = file.size, symbols = file.size, soname = 0;
  Elf64_Dyn entry{};
  for (std::uint64_t at = 0; at + sizeof(entry) <= dynamic.p_filesz && file.get(dynamic.p_offset + at, &entry);
       at += sizeof(entry)) {
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_NEEDED) needed.push_back(entry.d_un.d_val);
    if (entry.d_tag == DT_SONAME) soname = entry.d_un.d_val;
    if (entry.d_tag == DT_SYMTAB) symbols = offset_of(file, segments, entry.d_un.d_ptr);
    if (entry.d_tag == DT_STRTAB) strings = offset_of(file, segments, entry.d_un.d_ptr);
  }
  if (strings >= file.size) return;
  for (std::uint64_t name : needed) facts->needed.push_back(file.text(strings + name, 4096));
  if (soname != 0) facts->soname = file.text(strings + soname, 4096);
  if (symbols < file.size) read_undefined(file, symbols, strings, facts);
}

void read_headers(const Bytes& file, ElfFacts* facts) {
  Elf64_Ehdr header{};
  if (file.size < SELFMAG || std::memcmp(file.data, ELFMAG, SELFMAG) != 0) return;
  facts->is_elf = true;
  if (file.size < EI_NIDENT + 4) return;
  facts->is_64_bit = file.data[EI_CLASS] == ELFCLASS64;
  std::uint16_t type = 0, machine = 0;  // at the same place in both classes
  file.get(EI_NIDENT, &type);
  file.get(EI_NIDENT + 2, &machine);
  facts->machine = machine;
  facts->is_program = type == ET_EXEC || type == ET_DYN;
  if (!facts->is_64_bit || machine != EM_X86_64 || !file.get(0, &header)) return;
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  for (std::size_t i = 0; i < segments.size(); ++i)
    if (!file.get(header.e_phoff + i * sizeof(Elf64_Phdr), &segments[i])) return;
  for (const Elf64_Phdr& s : segments) {
    if (s.p_type == PT_INTERP) facts->interpreter = file.text(s.p_offset, s.p_filesz);
    if (s.p_type == PT_DYNAMIC) read_dynamic(file, segments, s, facts);
  }
}

}  // namespace

bool read_elf(const std::string& path, ElfFacts* facts) {
  *facts = {};
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
    ::close(fd);
    return true;
  }
  std::uint64_t size = static_cast<std::uint64_t>(info.st_size);
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  int err = errno;
  ::close(fd);
  errno = err;
  if (mapped == MAP_FAILED) return false;
  read_headers({static_cast<const char*>(mapped), size}, facts);
  ::munmap(mapped, size);
  return true;
}

}  // namespace shadowib::cli
