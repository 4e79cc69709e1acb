#include "shadowib/exchange/raw_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/spare_descriptors.h"

namespace shadowib {

OwnedFd adopt_owned(const UnownedDescriptors& unowned, int fd) {
  if (fd < 0) return OwnedFd();
  int moved = unowned.own(fd);
  if (moved < 0 && errno == EMFILE) moved = unowned.own_in_place(fd);
  if (moved >= 0) return OwnedFd(moved);
  int err = errno;
  raw_close(fd);
  errno = err;
  return OwnedFd();
}

constexpr int kStaleTries = 100;

OwnedFd open_owned(int directory, const char* path, int flags, mode_t mode) {
  UnownedDescriptors unowned;
  auto open = [&](int extra) {
    long fd;
    // Over NFS a file may be replaced once more while the kernel looks again for the one that has replaced it.
    int stale = 0;
    do fd = ::syscall(SYS_openat, directory, path, flags | O_CLOEXEC | extra, mode);
    while (fd < 0 && (errno == EINTR || (errno == ESTALE && ++stale < kStaleTries)));
    return static_cast<int>(fd);
  };
  // The first look at what was just written would write its time of access, and so wait for a journal that is busy
  // with images. It is refused to who does not own the file.
  const bool reads = (flags & (O_ACCMODE | O_PATH)) == O_RDONLY;
  int fd = open(reads ? O_NOATIME : 0);
  if (fd < 0 && errno == EMFILE && give_up_spare_descriptor()) fd = open(reads ? O_NOATIME : 0);
  if (fd < 0 && reads && errno == EPERM) fd = open(0);
  return adopt_owned(unowned, fd);
}

int write_whole(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    long wrote = ::syscall(SYS_write, fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    if (wrote == 0) return EIO;
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return 0;
}

void stamp(int fd) {
  timespec now[2] = {};
  ::clock_gettime(CLOCK_REALTIME, &now[1]);
  now[0] = now[1];
  ::syscall(SYS_utimensat, fd, nullptr, now, 0);
}

constexpr std::size_t kUnknownBytes = 4096;

int read_whole(int fd, std::string* bytes) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno;
  // One byte more than the size, so that the common case meets the end of the file in its second read.
  // Files of /proc say that they are empty.
  std::size_t capacity = info.st_size != 0 ? static_cast<std::size_t>(info.st_size) + 1 : kUnknownBytes, filled = 0;
  bytes->resize(capacity);
  for (;;) {
    if (filled == capacity) bytes->resize(capacity *= 2);
    long got = ::syscall(SYS_read, fd, bytes->data() + filled, capacity - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  bytes->resize(filled);
  return 0;
}

namespace {

// What follows `name` up to the line's end.
std::string_view field_of(std::string_view text, std::string_view name) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + name.size());
  return text.substr(0, text.find('\n'));
}

bool read_proc(const char* path, std::string* text) {
  OwnedFd fd = open_owned(AT_FDCWD, path, O_RDONLY);
  return fd && read_whole(fd.get(), text) == 0;
}

}  // namespace

std::string file_system_of(int fd) {
  std::string info, mounts;
  if (!read_proc(("/proc/self/fdinfo/" + std::to_string(fd)).c_str(), &info) ||
      !read_proc("/proc/self/mountinfo", &mounts))
    return {};
  std::string_view id = field_of(info, "mnt_id:");
  id.remove_prefix(std::min(id.find_first_not_of(" \t"), id.size()));
  if (id.empty()) return {};
  const std::string start = "\n" + std::string(id) + " ";
  mounts.insert(mounts.begin(), '\n');
  // proc_pid_mountinfo(5): optional fields end with a hyphen, then comes the type.
  const std::string_view line = field_of(mounts, start);
  const std::size_t at = line.find(" - ");
  if (at == std::string_view::npos) return {};
  const std::string_view type = line.substr(at + 3);
  return std::string(type.substr(0, type.find(' ')));
}

int make_directories(int directory, const std::string& path) {
  // Mostly only the last is missing, or another has just made it. Each call of mkdir locks the directory above it.
  if (::syscall(SYS_mkdirat, directory, path.c_str(), 0700) == 0)
    return ::syscall(SYS_fchmodat, directory, path.c_str(), 0700) == 0 ? 0 : errno;
  struct stat there {};
  if (errno == EEXIST && ::fstatat(directory, path.c_str(), &there, 0) == 0)
    return S_ISDIR(there.st_mode) ? 0 : ENOTDIR;
  std::string part = path;
  for (std::size_t end = part.find('/', 1);; end = part.find('/', end + 1)) {
    if (end != std::string::npos) part[end] = '\0';
    long rc = ::syscall(SYS_mkdirat, directory, part.c_str(), 0700);
    // A umask that takes our own bits away would leave a directory we cannot use.
    if (rc == 0) ::syscall(SYS_fchmodat, directory, part.c_str(), 0700);
    int err = rc == 0 ? 0 : errno;
    if (end == std::string::npos) {
      struct stat info {};
      if (err == EEXIST && ::fstatat(directory, part.c_str(), &info, 0) == 0 && !S_ISDIR(info.st_mode))
        return ENOTDIR;
      return err == EEXIST ? 0 : err;
    }
    // A parent that exists but may not be written (EACCES, EROFS) matters only if something below it is missing.
    if (err != 0 && err != EEXIST && err != EACCES && err != EROFS && err != EPERM) return err;
    part[end] = '/';
  }
}

const char* error_text(int err) {
  const char* text = ::strerrordesc_np(err);
  return text != nullptr ? text : "unknown error";
}

}  // namespace shadowib
