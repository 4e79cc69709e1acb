#include "hooks/store/files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace shadowib {
namespace {

int write_all(int fd, std::string_view content) {
  for (std::size_t at = 0; at < content.size();) {
    const ssize_t wrote = ::write(fd, content.data() + at, content.size() - at);
    if (wrote < 0 && errno != EINTR) return errno;
    if (wrote > 0) at += static_cast<std::size_t>(wrote);
  }
  return 0;
}

class SystemFiles : public Files {
 public:
  int make_directory(const std::string& path) override { return ::mkdir(path.c_str(), 0700) == 0 ? 0 : errno; }

  int check_directory(const std::string& path) override {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return errno;
    return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
  }

  int write_new(const std::string& path, std::string_view content) override {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return errno;
    int error = write_all(fd, content);
    if (::close(fd) != 0 && error == 0) error = errno;
    if (error != 0) ::unlink(path.c_str());
    return error;
  }

  int read(const std::string& path, std::string* content) override {
    int fd = -1;
    if (const int error = open(path, &fd); error != 0) return error;
    content->clear();
    char buffer[65536];
    ssize_t got;
    while ((got = ::read(fd, buffer, sizeof(buffer))) > 0) content->append(buffer, static_cast<std::size_t>(got));
    const int error = got < 0 ? errno : 0;
    ::close(fd);
    return error;
  }

  int open(const std::string& path, int* fd) override {
    *fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return *fd >= 0 ? 0 : errno;
  }

  // The size is the one of the open file. Before the open, a client of NFS may know a size from seconds ago.
  int sync(const std::string& path, std::uint64_t* bytes) override {
    // A directory may be reached by a symbolic link, a piece of a set may not.
    int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (const int error = fd < 0 ? open(path, &fd) : 0; error != 0) return error;
    struct stat info {};
    const int error = ::fstat(fd, &info) == 0 && ::fsync(fd) == 0 ? 0 : errno;
    ::close(fd);
    if (error == 0 && bytes != nullptr) *bytes = static_cast<std::uint64_t>(info.st_size);
    return error;
  }

  int rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  }

  int rename_if_absent(const std::string& from, const std::string& to) override {
    if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return errno;
    // The file system cannot refuse atomically; rename(2) onto a set that exists fails too, as it is not empty.
    return rename(from, to);
  }

  int remove_all(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    return error.value();
  }

  int list(const std::string& path, std::vector<std::string>* names) override {
    names->clear();
    std::error_code error;
    for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error))
      names->push_back(entry->path().filename());
    return error.value();
  }
};

}  // namespace

Files& system_files() {
  static SystemFiles* const files = new SystemFiles;
  return *files;
}

Status file_error(int error, const char* what, const std::string& path) {
  const char* remedy = "";
  if (error == ENOSPC || error == EDQUOT) remedy = "; free space there, or name another directory with --dir";
  if (error == EACCES || error == EPERM || error == EROFS) remedy = "; name a directory you may write to with --dir";
  return Status::of(Code::kIo, error, "cannot %s %.200s: %s%s", what, path.c_str(), std::strerror(error), remedy);
}

Status ensure_directory(const std::string& path, Files& files) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    const int error = files.make_directory(part);
    if (error == 0) {
      const std::size_t slash = part.rfind('/');
      const std::string above = slash == 0 ? "/" : slash == std::string::npos ? "." : part.substr(0, slash);
      // A directory that may be written but not read cannot be opened, and so not synced.
      if (const int failed = files.sync(above); failed != 0 && failed != EACCES)
        return file_error(failed, "sync directory", above);
    } else if (error != EEXIST && (end == std::string::npos || files.check_directory(part) == ENOENT)) {
      return file_error(error, "create directory", part);
    }
    if (end == std::string::npos) break;
  }
  const int error = files.check_directory(path);
  return error == 0 ? Status() : file_error(error, "use directory", path);
}

Status sync_path(const std::string& path) {
  const int error = system_files().sync(path);
  return error == 0 ? Status() : file_error(error, "sync", path);
}

Status read_file(const std::string& path, std::string* content, Files& files) {
  const int error = files.read(path, content);
  return error == 0 ? Status() : file_error(error, error == EACCES || error == ENOENT ? "open" : "read", path);
}

Status write_new_file(const std::string& path, std::string_view content, Files& files) {
  if (const int error = files.write_new(path, content); error != 0)
    return file_error(error, error == EEXIST || error == EACCES || error == ENOENT ? "create" : "write", path);
  const int error = files.sync(path);
  if (error == 0) return {};
  (void)files.remove_all(path);
  return file_error(error, "write", path);
}

}  // namespace shadowib
