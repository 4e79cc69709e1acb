#include "shadowib/base/mappings.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "shadowib/base/proc_queries.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

constexpr std::size_t kLongestLine = 8192;  // a path may be longer: of that one the beginning is told

// "START-END rwxp OFFSET DEVICE INODE   NAME"
bool parse(const char* line, Mapping* mapping) {
  char* rest = nullptr;
  mapping->start = std::strtoull(line, &rest, 16);
  if (*rest != '-') return false;
  mapping->end = std::strtoull(rest + 1, &rest, 16);
  const char* at = rest;
  if (rest[0] != ' ' || rest[1] == '\0' || rest[2] == '\0') return false;
  mapping->readable = rest[1] == 'r';
  mapping->writable = rest[2] == 'w';
  mapping->executable = rest[3] == 'x';
  mapping->shared = rest[3] != '\0' && rest[4] == 's';
  for (int field = 0; field < 4; ++field) {
    at += std::strspn(at, " ");
    if (field == 1) mapping->offset = std::strtoull(at, nullptr, 16);
    if (field == 2) {
      char* minor = nullptr;
      const unsigned long major = std::strtoul(at, &minor, 16);
      mapping->device = *minor == ':' ? makedev(major, std::strtoul(minor + 1, nullptr, 16)) : 0;
    }
    if (field == 3) mapping->inode = std::strtoull(at, nullptr, 10);
    at += std::strcspn(at, " ");
  }
  mapping->name = at + std::strspn(at, " ");
  return true;
}

bool is_of(MappingsOf kind, const Mapping& mapping) {
  return kind == MappingsOf::kAll || (kind == MappingsOf::kShared ? mapping.shared : mapping.executable);
}

struct Visit {
  Visit(MappingsOf which, bool (*visitor)(const Mapping& mapping, void* arg), void* argument)
      : kind(which), visit(visitor), arg(argument) {}

  MappingsOf kind;
  bool (*visit)(const Mapping& mapping, void* arg);
  void* arg;
  std::uint64_t from = 0;  // mappings below have been visited
  bool more = true;
  char buffer[kLongestLine];

  // A mapping may have grown since the one before was visited, and have become one with it: the rest is told.
  void take(Mapping mapping) {
    if (mapping.end <= from || !is_of(kind, mapping)) return;
    if (mapping.start < from) {
      if (mapping.inode != 0) mapping.offset += from - mapping.start;
      mapping.start = from;
    }
    from = mapping.end;
    more = visit(mapping, arg);
  }
};

// PROCMAP_QUERY_VMA_... and PROCMAP_QUERY_COVERING_OR_NEXT_VMA.
constexpr std::uint64_t kReadable = 1, kWritable = 2, kExecutable = 4, kShared = 8, kThisOrNext = 16;
constexpr std::size_t kLongestName = 4096;

// As the text has a line's end in a name. False: there is no room for it.
bool escape_ends(char* name, std::size_t room) {
  std::size_t bytes = std::strlen(name) + 1;
  while ((name = std::strchr(name, '\n')) != nullptr) {
    if (bytes + 3 > room) return false;
    std::memmove(name + 4, name + 1, std::strlen(name));
    std::memcpy(name, "\\012", 4);
    bytes += 3;
  }
  return true;
}

// False: the kernel does not tell that way, or not all; what is left is in the text.
bool visit_by_query(int fd, Visit* v) {
  while (v->more) {
    ProcmapQuery query{};
    query.size = sizeof(query);
    query.query_flags = kThisOrNext | (v->kind == MappingsOf::kShared ? kShared : kExecutable);
    query.query_addr = v->from;
    query.vma_name_addr = reinterpret_cast<std::uint64_t>(v->buffer);
    query.vma_name_size = kLongestName;
    if (::syscall(SYS_ioctl, fd, kProcmapQuery, &query) != 0) return errno == ENOENT;
    if (query.vma_name_size == 0) v->buffer[0] = '\0';
    if (!escape_ends(v->buffer, sizeof(v->buffer))) return false;
    v->take({query.vma_start, query.vma_end, (query.vma_flags & kReadable) != 0, (query.vma_flags & kWritable) != 0,
             (query.vma_flags & kExecutable) != 0, (query.vma_flags & kShared) != 0, query.vma_offset,
             makedev(query.dev_major, query.dev_minor), query.inode, v->buffer});
  }
  return true;
}

int visit_text(int fd, Visit* v) {
  std::size_t kept = 0;  // the beginning of a line whose end has not been read
  bool told = false;     // what is read now is the end of a line that was too long
  long n = 0;
  const auto take_line = [&](const char* line) {
    Mapping mapping;
    if (!told && parse(line, &mapping)) v->take(mapping);
  };
  while (v->more && (n = ::syscall(SYS_read, fd, v->buffer + kept, sizeof(v->buffer) - 1 - kept)) > 0) {
    const std::size_t bytes = kept + static_cast<std::size_t>(n);
    char *line = v->buffer, *end;
    while (v->more && (end = static_cast<char*>(std::memchr(line, '\n', v->buffer + bytes - line))) != nullptr) {
      *end = '\0';
      take_line(line);
      told = false;
      line = end + 1;
    }
    kept = static_cast<std::size_t>(v->buffer + bytes - line);
    std::memmove(v->buffer, line, kept);
    if (v->more && kept == sizeof(v->buffer) - 1) {
      v->buffer[kept] = '\0';
      take_line(v->buffer);
      told = true;
      kept = 0;
    }
  }
  return n < 0 ? errno : 0;
}

}  // namespace

int visit_mappings(MappingsOf kind, const char* maps, bool (*visit)(const Mapping& mapping, void* arg), void* arg) {
  UnownedDescriptors unowned;
  const int fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, maps, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return errno;
  Visit v(kind, visit, arg);
  const int error = kind != MappingsOf::kAll && visit_by_query(fd, &v) ? 0 : visit_text(fd, &v);
  ::syscall(SYS_close, fd);
  return error;
}

}  // namespace shadowib
