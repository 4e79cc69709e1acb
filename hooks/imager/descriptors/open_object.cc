#include "hooks/imager/descriptors/open_object.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace shadowib::descriptors {

void set_status_flags(int fd, int flags) { ::fcntl(fd, F_SETFL, flags & kSettable); }

Status restore_failure(Code code, const Object& object, const char* what, int error) {
  if (error == 0) return Status::of(code, 0, "cannot restore %s: %s", describe_object(object).c_str(), what);
  if (error == EMFILE)  // the command has the descriptors of all members open
    return Status::of(code, error, "cannot restore %s: too few descriptors; raise the hard limit (ulimit -Hn)",
                      describe_object(object).c_str());
  return Status::of(code, error, "cannot restore %s: %s (%s)", describe_object(object).c_str(), what,
                    std::strerror(error));
}

Status open_path(const Object& o, int* fd) {
  // O_NONBLOCK: if something else has the name now, opening it must not hang.
  int flags = (o.flags & kOpenFlags) | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
  *fd = ::open(o.path.c_str(), flags);
  if (*fd < 0 && errno == EPERM && (flags & O_NOATIME) != 0) *fd = ::open(o.path.c_str(), flags & ~O_NOATIME);
  if (*fd < 0)
    return restore_failure(errno == ENOENT ? Code::kNotFound : Code::kRefused, o,
                           "put the file back as it was at the checkpoint", errno);
  struct stat st {};
  const char* fault = nullptr;
  if (::fstat(*fd, &st) != 0 || (st.st_mode & S_IFMT) != (o.mode & S_IFMT) ||
      (S_ISCHR(st.st_mode) && st.st_rdev != o.rdev))
    fault = "something of another type has that name now";
  else if (o.kind == Kind::kFile && static_cast<std::uint64_t>(st.st_size) < o.size)
    fault = "the file is shorter than at the checkpoint";
  if (fault == nullptr && (flags & O_PATH) == 0 && o.kind != Kind::kDevice &&
      ::lseek(*fd, static_cast<off_t>(o.offset), SEEK_SET) < 0 && o.offset != 0)
    fault = "its offset cannot be set";
  if (fault != nullptr) {
    ::close(*fd);
    *fd = -1;
    return restore_failure(Code::kRefused, o, fault, 0);
  }
  if ((flags & O_PATH) == 0) set_status_flags(*fd, o.flags);
  return {};
}

}  // namespace shadowib::descriptors
