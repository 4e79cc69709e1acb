#include "hooks/raw/proc.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/mappings.h"
#include "shadowib/base/unowned_descriptors.h"

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

int list_numbers(const char* path, std::vector<int>* numbers, int* through) {
  numbers->clear();
  UnownedDescriptors unowned;
  int directory = raw_open(path, O_RDONLY | O_DIRECTORY);
  if (directory < 0) return errno;
  alignas(8) char buffer[4096];
  long bytes;
  while ((bytes = ::syscall(SYS_getdents64, directory, buffer, sizeof(buffer))) > 0)
    for (long at = 0; at < bytes;) {
      auto* entry = reinterpret_cast<DirectoryEntry*>(buffer + at);
      at += entry->length;
      if (entry->name[0] < '0' || entry->name[0] > '9') continue;
      numbers->push_back(static_cast<int>(parse_number(entry->name, 10)));
    }
  int error = bytes < 0 ? errno : 0;
  raw_close(directory);
  if (through != nullptr) *through = directory;
  std::sort(numbers->begin(), numbers->end());
  return error;
}

Status list_descriptors(std::vector<int>* fds) {
  int through = -1;
  const int error = list_numbers("/proc/self/fd", fds, &through);
  if (error != 0)
    return Status::of(
        error == EMFILE ? Code::kRefused : Code::kPermission, error,
        "cannot read /proc/self/fd: %s; mount /proc, or leave a few descriptors below RLIMIT_NOFILE free",
        ::strerrordesc_np(error));
  std::erase_if(*fds, [through](int fd) { return fd == through || is_owned_descriptor(fd); });
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

int read_proc_file(const char* path, std::string* text) {
  text->clear();
  UnownedDescriptors unowned;
  int file = raw_open(path, O_RDONLY);
  if (file < 0) return errno;
  char buffer[4096];
  ssize_t n;
  while ((n = ::read(file, buffer, sizeof(buffer))) > 0) text->append(buffer, static_cast<std::size_t>(n));
  int error = n < 0 ? errno : 0;
  raw_close(file);
  return error;
}

namespace {

// Appends the file "N" of a directory. The kernel tells all that fits at once, so a short text is the whole.
int append_info(int directory, const char* path, std::string* text) {
  const int file = static_cast<int>(::syscall(SYS_openat, directory, path, O_RDONLY | O_CLOEXEC, 0));
  if (file < 0) return errno;
  char buffer[4096];
  ssize_t n;
  do {
    n = ::read(file, buffer, sizeof(buffer));
    if (n > 0) text->append(buffer, static_cast<std::size_t>(n));
  } while (n == sizeof(buffer));
  const int error = n < 0 ? errno : 0;
  raw_close(file);
  return error;
}

Status info_failure(int fd, int error) {
  return Status::of(Code::kRefused, error, "descriptor %d: cannot read /proc/self/fdinfo/%d (errno %d)", fd, fd,
                    error);
}

}  // namespace

Status read_fdinfo(int fd, std::string* text) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
  text->clear();
  UnownedDescriptors unowned;
  const int error = append_info(AT_FDCWD, path, text);
  return error == 0 ? Status{} : info_failure(fd, error);
}

Status DescriptorInfos::read(const std::vector<int>& fds) {
  text_.clear();
  ends_.assign(1, 0);
  UnownedDescriptors unowned;
  // Shorter paths for many; a process at its limit has one descriptor left for each in turn.
  const int directory = fds.size() < 64 ? -1 : raw_open("/proc/self/fdinfo", O_PATH | O_DIRECTORY);
  Status status;
  for (std::size_t i = 0; i < fds.size() && status.ok(); ++i) {
    char path[64];
    std::snprintf(path, sizeof(path), "%s%d", directory < 0 ? "/proc/self/fdinfo/" : "", fds[i]);
    if (const int error = append_info(directory < 0 ? AT_FDCWD : directory, path, &text_); error != 0)
      status = info_failure(fds[i], error);
    ends_.push_back(text_.size());
  }
  if (directory >= 0) raw_close(directory);
  return status;
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

namespace {

// The number that the next component of a path is, which is taken off; 0: it is none.
std::int32_t take_number(std::string_view* path) {
  const std::size_t end = std::min(path->find('/'), path->size());
  const std::string_view digits = path->substr(0, end);
  const bool number = !digits.empty() && digits.size() < 10 && digits.find_first_not_of("0123456789") == digits.npos;
  path->remove_prefix(end);
  return number ? static_cast<std::int32_t>(parse_number(digits, 10)) : 0;
}

bool take(std::string_view* path, std::string_view prefix) {
  if (!path->starts_with(prefix)) return false;
  path->remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::int32_t process_of(std::string_view path) { return take(&path, "/proc/") ? take_number(&path) : 0; }

std::int32_t thread_of(std::string_view path) {
  if (!take(&path, "/proc/") || take_number(&path) == 0 || !take(&path, "/task/")) return 0;
  return take_number(&path);
}

int read_shared_mappings(const char* maps, std::vector<SharedMapping>* mappings) {
  mappings->clear();
  return for_each_mapping(MappingsOf::kShared, maps, [&](const Mapping& m) {
    mappings->push_back({m.start, m.end, m.offset, m.device, m.inode, m.name});
    return true;
  });
}

bool read_process_stat(int pid, ProcessStat* stat) {
  std::string text;
  if (read_proc_file(("/proc/" + std::to_string(pid) + "/stat").c_str(), &text) != 0) return false;
  const std::size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return false;
  stat->name = text.substr(open + 1, close - open - 1);
  std::string_view rest = std::string_view(text).substr(close + 1);
  for (int field = 3; !rest.empty(); ++field) {
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    const std::string_view value = rest.substr(0, rest.find(' '));
    rest.remove_prefix(value.size());
    const auto number = static_cast<std::int32_t>(value.starts_with('-') ? 0 : parse_number(value, 10));
    if (field == 3 && !value.empty()) stat->state = value[0];
    if (field == 4) stat->parent = number;
    if (field == 5) stat->group = number;
    if (field == 6) stat->session = number;
    if (field == 38) {
      stat->exit_signal = number;
      return true;
    }
  }
  return false;
}

bool names_of(int pid, std::uint64_t* space, int* inner, std::string* comm) {
  char path[64];
  struct stat st {};
  std::snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
  if (::stat(path, &st) == 0) *space = st.st_ino;
  std::snprintf(path, sizeof(path), "/proc/%d/status", pid);
  std::string status;
  if (read_proc_file(path, &status) != 0) return false;
  std::string_view value;
  if (info_field(status, "Name", &value)) *comm = value;
  if (info_field(status, "NSpid", &value))
    *inner = static_cast<int>(parse_number(value.substr(value.find_last_of(" \t") + 1), 10));
  return true;
}

int compare_descriptions(int a, int b) {
  const int self = static_cast<int>(::syscall(SYS_getpid));
  return compare_descriptions(self, a, self, b);
}

int compare_descriptions(int pid_a, int a, int pid_b, int b) {
  return static_cast<int>(
      ::syscall(SYS_kcmp, pid_a, pid_b, KCMP_FILE, static_cast<unsigned long>(a), static_cast<unsigned long>(b)));
}

}  // namespace shadowib::descriptors
