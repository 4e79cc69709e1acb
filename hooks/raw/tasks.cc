#include "hooks/raw/tasks.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

struct Entry {  // struct linux_dirent64
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t length;
  std::uint8_t type;
  char name[];
};

int raw_open(const char* path, int flags) {
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0));
}

// Reads one line of a task file without its end of line.
void read_line(int tid, const char* name, char* text, std::size_t capacity) {
  if (read_task_file(tid, name, text, capacity) < 0) text[0] = '\0';
  text[std::strcspn(text, "\n")] = '\0';
}

}  // namespace

bool for_each_task(bool (*visit)(int tid, void* arg), void* arg) {
  UnownedDescriptors unowned;
  int fd = raw_open("/proc/self/task", O_RDONLY | O_DIRECTORY);
  if (fd < 0) return false;
  alignas(Entry) char buffer[4096];
  long got;
  bool more = true;
  while (more && (got = ::syscall(SYS_getdents64, fd, buffer, sizeof(buffer))) > 0) {
    for (long at = 0; more && at < got;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
      at += entry->length;
      const char* p = entry->name;
      if (*p >= '0' && *p <= '9') more = visit(static_cast<int>(parse_number(&p)), arg);
    }
  }
  int saved = errno;
  ::syscall(SYS_close, fd);
  errno = saved;
  return !more || got == 0;
}

int read_task_file(int tid, const char* name, char* text, std::size_t capacity) {
  char path[64];
  if (tid == 0)
    std::snprintf(path, sizeof(path), "/proc/self/%s", name);
  else
    std::snprintf(path, sizeof(path), "/proc/self/task/%d/%s", tid, name);
  UnownedDescriptors unowned;
  int fd = raw_open(path, O_RDONLY);
  if (fd < 0) return -1;
  long n = ::syscall(SYS_read, fd, text, capacity - 1);
  int saved = errno;
  ::syscall(SYS_close, fd);
  errno = saved;
  if (n < 0) return -1;
  text[n] = '\0';
  return static_cast<int>(n);
}

std::uint64_t parse_number(const char** text) {
  const char* p = *text;
  while (*p == ' ') ++p;
  std::uint64_t value = 0;
  if (p[0] == '0' && p[1] == 'x') {
    for (p += 2;; ++p) {
      if (*p >= '0' && *p <= '9')
        value = value * 16 + static_cast<std::uint64_t>(*p - '0');
      else if (*p >= 'a' && *p <= 'f')
        value = value * 16 + static_cast<std::uint64_t>(*p - 'a' + 10);
      else
        break;
    }
  } else {
    for (; *p >= '0' && *p <= '9'; ++p) value = value * 10 + static_cast<std::uint64_t>(*p - '0');
  }
  *text = p;
  return value;
}

char task_state(int tid) {
  char text[512];
  if (read_task_file(tid, "stat", text, sizeof(text)) <= 0) return 0;
  const char* end = std::strrchr(text, ')');
  return end != nullptr && end[1] == ' ' ? end[2] : 0;
}

bool task_stat(int tid, int field, std::uint64_t* value) {
  char text[1024];
  if (read_task_file(tid, "stat", text, sizeof(text)) <= 0) return false;
  const char* at = std::strrchr(text, ')');
  for (int before = 2; at != nullptr && before < field; ++before) at = std::strchr(at + 1, ' ');
  if (at == nullptr) return false;
  *value = parse_number(&at);
  return true;
}

void describe_task(int tid, char* text, std::size_t capacity) {
  char comm[64], call[128], wchan[64];
  read_line(tid, "comm", comm, sizeof(comm));
  read_line(tid, "syscall", call, sizeof(call));
  read_line(tid, "wchan", wchan, sizeof(wchan));
  call[std::strcspn(call, " ")] = '\0';  // the number; the arguments help nobody
  std::snprintf(text, capacity, "tid %d (%s), state %c, system call %s, waiting in %s", tid, comm, task_state(tid),
                call[0] ? call : "?", wchan[0] && wchan[0] != '0' ? wchan : "-");
}

}  // namespace shadowib
