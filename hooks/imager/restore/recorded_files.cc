#include "hooks/imager/restore/recorded_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace shadowib {

Status file_failure(const char* what, const char* object) {
  const Code code = errno == EPERM || errno == EACCES ? Code::kPermission
                    : errno == ENOENT                 ? Code::kNotFound
                                                      : Code::kIo;
  return Status::of(code, errno, "cannot %s %s: %s", what, object, std::strerror(errno));
}

Status open_program(const LoadedImage& image, int* fd) {
  constexpr std::string_view kRemoved = " (deleted)";
  *fd = ::open(image.exe.c_str(), O_RDONLY | O_CLOEXEC);
  if (*fd >= 0) return {};
  if (errno != ENOENT || !image.exe.ends_with(kRemoved)) return file_failure("open the program", image.exe.c_str());
  // The image has the program's pages. The kernel takes only what can be executed for /proc/PID/exe.
  const std::string name = image.exe.substr(0, image.exe.size() - kRemoved.size());
  struct stat info {};
  if (::access(name.c_str(), X_OK) == 0 && ::stat(name.c_str(), &info) == 0 && S_ISREG(info.st_mode))
    *fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC);
  return {};
}

Status open_shared_file(const MappingRecord& m, const std::string& path, int* fd) {
  *fd = ::open(path.c_str(), (m.file_mode != 0 ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  struct stat info {};
  if (*fd < 0 || ::fstat(*fd, &info) != 0) return file_failure("open the file of a shared mapping,", path.c_str());
  if (static_cast<std::uint64_t>(info.st_size) == m.file_bytes) return {};
  ::close(*fd);
  *fd = -1;
  return Status::of(Code::kRefused, 0,
                    "%s is mapped shared at %lx and has %ld bytes now, but had %lu at the "
                    "checkpoint; put the file back",
                    path.c_str(), m.start, static_cast<long>(info.st_size), m.file_bytes);
}

}  // namespace shadowib
