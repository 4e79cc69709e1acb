#include "hooks/imager/restore/recorded_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace shadowib {

Status file_failure(const char* what, const char* object) {
  const Code code = errno == EPERM || errno == EACCES ? Code::kPermission
                    : errno == ENOENT                 ? Code::kNotFound
                                                      : Code::kIo;
  return Status::of(code, errno, "cannot %s %s: %s", what, object, std::strerror(errno));
}

Status open_program(const LoadedImage& image, int* fd) {
  *fd = ::open(image.exe.c_str(), O_RDONLY | O_CLOEXEC);
  return *fd >= 0 ? Status{} : file_failure("open the program", image.exe.c_str());
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
