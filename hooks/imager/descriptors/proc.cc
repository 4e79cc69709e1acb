#include "hooks/imager/descriptors/proc.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>

#include "shadowib/base/descriptors.h"

namespace shadowib::descriptors {
namespace {

struct DirectoryEntry {  // linux_dirent64
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t length;
  std::uint8_t type;
  char name[1];
};

int raw_open(const char* path, int flags) {
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0));
}

}  // namespace

void raw_close(int fd) { ::syscall(SYS_close, fd); }

Status list_descriptors(std::vector<int>* fds) {
  fds->clear();
  int directory = raw_open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
  if (directory < 0)
    return Status::of(
        errno == EMFILE ? Code::kRefused : Code::kPermission, errno,
        "cannot open /proc/self/fd: %s; mount /proc, or leave a few descriptors below RLIMIT_NOFILE free",
        ::strerrordesc_np(errno));
  alignas(8) char buffer[4096];
  long bytes;
  while ((bytes = ::syscall(SYS_getdents64, directory, buffer, sizeof(buffer))) > 0)
    for (long at = 0; at < bytes;) {
      auto* entry = reinterpret_cast<DirectoryEntry*>(buffer + at);
      at += entry->length;
      if (entry->name[0] == '.') continue;
      int fd = static_cast<int>(parse_number(entry->name, 10));
      if (fd != directory && !is_owned_descriptor(fd)) fds->push_back(fd);
    }
  int error = bytes < 0 ? errno : 0;
  raw_close(directory);
  if (error != 0) return Status::of(Code::kInternal, error, "cannot read /proc/self/fd (errno %d)", error);
  std::sort(fds->begin(), fds->end());
  return {};
}

std::string link_target(const char* path) {
  char buffer[PATH_MAX + 64];
  ssize_t length = ::readlink(path, buffer, sizeof(buffer));
  return length < 0 ? std::string() : std::string(buffer, static_cast<std::size_t>(length));
}

std::string descriptor_target(int fd) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  return link_target(path);
}

Status read_fdinfo(int fd, std::string* text) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
  text->clear();
  int info = raw_open(path, O_RDONLY);
  if (info < 0) return Status::of(Code::kRefused, errno, "descriptor %d: cannot open %s (errno %d)", fd, path, errno);
  char buffer[4096];
  ssize_t n;
  while ((n = ::read(info, buffer, sizeof(buffer))) > 0) text->append(buffer, static_cast<std::size_t>(n));
  int error = n < 0 ? errno : 0;
  raw_close(info);
  if (error != 0)
    return Status::of(Code::kInternal, error, "descriptor %d: cannot read %s (errno %d)", fd, path, error);
  return {};
}

bool info_field(std::string_view info, std::string_view name, std::string_view* value) {
  for (std::size_t at = 0; at < info.size();) {
    std::size_t end = std::min(info.find('\n', at), info.size());
    std::string_view line = info.substr(at, end - at);
    at = end + 1;
    if (line.size() <= name.size() || line.substr(0, name.size()) != name || line[name.size()] != ':') continue;
    line.remove_prefix(name.size() + 1);
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    *value = line;
    return true;
  }
  return false;
}

std::uint64_t parse_number(std::string_view text, int base) {
  std::uint64_t value = 0;
  for (char c : text) {
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : base;
    if (digit >= base) break;
    value = value * static_cast<unsigned>(base) + static_cast<unsigned>(digit);
  }
  return value;
}

Status refuse(int fd, const char* type, const char* why) {
  return Status::of(Code::kRefused, 0, "descriptor %d (%s) of pid %d cannot be checkpointed: %s", fd, type,
                    ::getpid(), why);
}

int compare_descriptions(int a, int b) {
  long self = ::syscall(SYS_getpid);
  return static_cast<int>(
      ::syscall(SYS_kcmp, self, self, KCMP_FILE, static_cast<unsigned long>(a), static_cast<unsigned long>(b)));
}

}  // namespace shadowib::descriptors
