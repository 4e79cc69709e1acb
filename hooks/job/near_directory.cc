#include "hooks/job/near_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "hooks/raw/directory_reader.h"

namespace shadowib {
namespace {

// By system calls: in a member libc's functions may be guarded.
class OpenDirectory {
 public:
  explicit OpenDirectory(long fd) : fd_(static_cast<int>(fd)), error_(fd < 0 ? errno : 0) {}
  ~OpenDirectory() { close(); }
  OpenDirectory(const OpenDirectory&) = delete;
  OpenDirectory& operator=(const OpenDirectory&) = delete;
  int fd() const { return fd_; }
  int error() const { return error_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd) {
    close();
    fd_ = fd;
  }

 private:
  void close() {
    if (fd_ >= 0) ::syscall(SYS_close, fd_);
    fd_ = -1;
  }
  int fd_, error_;
};

long open_place(const std::string& place) {
  return ::syscall(SYS_openat, AT_FDCWD, place.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
}

// A component below an open directory; never through a link.
long open_below(int parent, const std::string& name) {
  return ::syscall(SYS_openat, parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
}

int make_below(int parent, const std::string& name) {
  return ::syscall(SYS_mkdirat, parent, name.c_str(), 0700) == 0 || errno == EEXIST ? 0 : errno;
}

std::string root_name() { return "shadowib-" + std::to_string(::geteuid()); }

Status near_error(int error, const char* what, const std::string& path) {
  const char* remedy = error == ENOSPC || error == EDQUOT ? "; free space there, or name another place with --near"
                                                          : "; name another place with --near";
  return Status::of(Code::kIo, error, "cannot %s %.200s: %.60s%s", what, path.c_str(), std::strerror(error), remedy);
}

Status judge_root(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return near_error(errno, "look at", path);
  if (info.st_uid != ::geteuid())
    return Status::of(Code::kPermission, EPERM,
                      "%.200s belongs to user %u, who could read the images: have it removed, or name another place "
                      "with --near",
                      path.c_str(), info.st_uid);
  if ((info.st_mode & 077) != 0)
    return Status::of(Code::kPermission, EPERM, "%.200s is open to others (mode %03o): chmod it to 700", path.c_str(),
                      info.st_mode & 0777);
  return {};
}

Status open_root(const std::string& place, bool make, int* fd) {
  const std::string path = near_root(place);
  const OpenDirectory above(open_place(place));
  if (above.fd() < 0) return near_error(above.error(), "open", place);
  if (make)
    if (const int error = make_below(above.fd(), root_name()); error != 0)
      return near_error(error, "create directory", path);
  OpenDirectory root(open_below(above.fd(), root_name()));
  if (root.error() == ELOOP || root.error() == ENOTDIR)
    return Status::of(Code::kPermission, root.error(),
                      "%.200s is a link or a file: remove it, or name another place with --near", path.c_str());
  if (root.fd() < 0) return near_error(root.error(), "open", path);
  SHADOWIB_TRY(judge_root(root.fd(), path));
  *fd = root.release();
  return {};
}

Status sync(int fd, const std::string& path) {
  return ::syscall(SYS_fsync, fd) == 0 ? Status() : near_error(errno, "sync", path);
}

}  // namespace

std::string near_root(std::string_view place) {
  std::string path(place);
  path += '/';
  path += root_name();
  return path;
}

std::string near_set_path(std::string_view place, std::string_view job, std::string_view set_id) {
  std::string path = near_root(place);
  path += '/', path += job, path += '/', path += set_id;
  return path;
}

Status check_near_root(const std::string& place, bool make) {
  int fd = -1;
  SHADOWIB_TRY(open_root(place, make, &fd));
  ::syscall(SYS_close, fd);
  return {};
}

Status make_near_set(const std::string& place, const std::string& job, const std::string& set_id,
                     const std::string& directory, int* fd) {
  int root = -1;
  SHADOWIB_TRY(open_root(place, true, &root));
  OpenDirectory at(root);
  for (const std::string& name : {job, set_id}) {
    int error = make_below(at.fd(), name);
    const long below = error == 0 ? open_below(at.fd(), name) : -1;
    if (error == 0 && below < 0) error = errno;
    if (error != 0) return near_error(error, "create directory", near_set_path(place, job, set_id));
    at.reset(static_cast<int>(below));
  }
  if (::syscall(SYS_symlinkat, directory.c_str(), at.fd(), kNearHome) != 0 && errno != EEXIST)
    return near_error(errno, "write", near_set_path(place, job, set_id));
  *fd = at.release();
  return {};
}

Status sync_near_set(const std::string& place, const std::string& job, const std::string& set_id) {
  const std::string path = near_set_path(place, job, set_id);
  int fd = -1;
  SHADOWIB_TRY(open_root(place, false, &fd));
  const OpenDirectory root(fd), jobs(open_below(fd, job)), set(open_below(jobs.fd(), set_id));
  if (set.fd() < 0) return near_error(set.error(), "open", path);
  SHADOWIB_TRY(sync(set.fd(), path));
  SHADOWIB_TRY(sync(jobs.fd(), path));
  SHADOWIB_TRY(sync(root.fd(), path));
  const OpenDirectory above(open_place(place));
  return above.fd() < 0 ? near_error(above.error(), "open", place) : sync(above.fd(), place);
}

void remove_near_image(const std::string& place, const std::string& job, const std::string& set_id,
                       const std::string& file) {
  int fd = -1;
  if (!open_root(place, false, &fd).ok()) return;
  const OpenDirectory root(fd), jobs(open_below(fd, job)), set(open_below(jobs.fd(), set_id));
  if (set.fd() < 0) return;
  ::syscall(SYS_unlinkat, set.fd(), file.c_str(), 0);
  DirectoryReader names(near_set_path(place, job, set_id).c_str());
  while (const char* name = names.next())
    if (std::strcmp(name, ".") != 0 && std::strcmp(name, "..") != 0 && std::strcmp(name, kNearHome) != 0) return;
  // Others may do the same at this moment, to no harm.
  ::syscall(SYS_unlinkat, set.fd(), kNearHome, 0);
  ::syscall(SYS_unlinkat, jobs.fd(), set_id.c_str(), AT_REMOVEDIR);
  ::syscall(SYS_unlinkat, root.fd(), job.c_str(), AT_REMOVEDIR);
}

}  // namespace shadowib
