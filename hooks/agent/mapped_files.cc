// Which files are mapped into this process, with their build-ids: recorded in the set, so that a restart under
// upgraded packages is refused instead of crashing.
#include "hooks/agent/mapped_files.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>
#include <string_view>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/mappings.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

bool read_at(int fd, void* to, std::size_t bytes, std::uint64_t offset) {
  return ::pread(fd, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
}

// The NT_GNU_BUILD_ID among the notes of one segment, as hex.
std::string build_id_in(const char* notes, std::size_t bytes) {
  std::size_t at = 0;
  while (at + sizeof(Elf64_Nhdr) <= bytes) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes + at, sizeof(note));
    std::size_t name = at + sizeof(note), value = name + ((note.n_namesz + 3u) & ~3u);
    std::size_t end = value + note.n_descsz;
    if (end > bytes || value < name) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(notes + name, "GNU", 4) == 0) {
      std::string hex;
      for (std::size_t i = value; i < end; ++i) {
        auto byte = static_cast<unsigned char>(notes[i]);
        hex += "0123456789abcdef"[byte >> 4], hex += "0123456789abcdef"[byte & 15];
      }
      return hex;
    }
    at = value + ((note.n_descsz + 3u) & ~3u);
  }
  return {};
}

std::string build_id_of(const std::string& path) {
  UnownedDescriptors unowned;
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return {};
  Elf64_Ehdr header;
  std::string id;
  if (read_at(fd, &header, sizeof(header), 0) && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
      header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_phentsize == sizeof(Elf64_Phdr)) {
    for (int i = 0; i < header.e_phnum && id.empty(); ++i) {
      Elf64_Phdr segment;
      char notes[4096];
      if (!read_at(fd, &segment, sizeof(segment), header.e_phoff + i * sizeof(segment))) break;
      if (segment.p_type != PT_NOTE || segment.p_filesz > sizeof(notes)) continue;
      if (read_at(fd, notes, segment.p_filesz, segment.p_offset)) id = build_id_in(notes, segment.p_filesz);
    }
  }
  raw_close(fd);
  return id;
}

}  // namespace

// Libraries and programs have executable mappings. Data files are left alone: closing a descriptor of one drops the
// process's record locks on it.
std::string describe_mapped_files() {
  std::set<std::string> paths;
  for_each_mapping(MappingsOf::kExecutable, kOwnMaps, [&](const Mapping& mapping) {
    const std::string_view path = mapping.name;
    if (path.starts_with("/") && !path.ends_with(" (deleted)") && !path.starts_with("/dev/") &&
        !path.starts_with("/memfd:") && !path.starts_with("/SYSV"))
      paths.emplace(path);
    return true;
  });
  std::string lines;
  for (const auto& path : paths) {
    std::string id = build_id_of(path);
    lines += (id.empty() ? "-" : id) + " " + path + "\n";
  }
  return lines;
}

}  // namespace shadowib
