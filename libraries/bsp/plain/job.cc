// The part of libshadowib's C API that this library calls, over files: for programs without the shim.
//
// Values lie in the directory SHADOWIB_BSP_MEETING, which bsprun makes for a run and removes.
#include <fcntl.h>
#include <poll.h>
#include <shadowib/shadowib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string last_error;

int failed(const std::string& what, int error) {
  last_error = what + ": " + std::strerror(error);
  return -error;
}

std::string path_of(const char* name) {
  const char* directory = std::getenv("SHADOWIB_BSP_MEETING");
  return directory != nullptr ? std::string(directory) + "/" + name : "";
}

}  // namespace

extern "C" {
int shadowib_publish(const char* name, const void* value, std::size_t bytes) {
  const std::string path = path_of(name);
  if (path.empty()) return failed("SHADOWIB_BSP_MEETING is not set; start the program by bsprun --portable", EINVAL);
  const std::string part = path + ".new-" + std::to_string(::getpid());
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return failed(part, errno);
  const bool whole = ::write(fd, value, bytes) == static_cast<ssize_t>(bytes);
  int error = whole ? 0 : errno;
  ::close(fd);
  if (error == 0 && ::link(part.c_str(), path.c_str()) != 0) error = errno;
  ::unlink(part.c_str());
  return error == 0 ? 0 : failed(path, error);
}

int shadowib_lookup(const char* name, void* value, std::size_t capacity, int timeout_ms) {
  const std::string path = path_of(name);
  constexpr int kLookMs = 2;
  for (int waited = 0;; waited += kLookMs) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
      const ssize_t n = ::read(fd, value, capacity);
      const int error = errno;
      ::close(fd);
      return n >= 0 ? static_cast<int>(n) : failed(path, error);
    }
    if (errno != ENOENT) return failed(path, errno);
    if (waited >= timeout_ms) return failed(path, ETIMEDOUT);
    ::poll(nullptr, 0, kLookMs);
  }
}

const char* shadowib_last_error(void) { return last_error.c_str(); }
int shadowib_join(void) { return 0; }
// Checkpoints of portable programs are asked for by the command.
int shadowib_checkpoint(unsigned, int, char*, std::size_t) {
  return failed("a portable program takes none itself", ENOTSUP);
}
}
