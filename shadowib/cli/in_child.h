// Trying something that must not change this process.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace shadowib::cli {

// Runs body in a child; what it returns (0 or an errno) comes back through its exit code.
template <typename Body>
int in_child(Body body) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(body() & 0xff);
  if (child < 0) return errno;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
}

// Likewise for a body that tells something: its output on the descriptor it is given is appended to *told.
template <typename Body>
int in_child(Body body, std::string* told) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return errno;
  pid_t child = ::fork();
  if (child == 0) ::_exit(body(pipe[1]) & 0xff);
  const int error = errno;
  ::close(pipe[1]);
  char buffer[4096];
  for (ssize_t n; child > 0 && ((n = ::read(pipe[0], buffer, sizeof(buffer))) > 0 || (n < 0 && errno == EINTR));)
    if (n > 0) told->append(buffer, static_cast<std::size_t>(n));
  ::close(pipe[0]);
  if (child < 0) return error;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
}

}  // namespace shadowib::cli
