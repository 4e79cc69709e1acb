#include "libraries/bsp/complain.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace shadowib::bsp {

void (*tell_peers)() = nullptr;
int own_number = -1;

namespace {

constexpr std::size_t kLine = 2048;

// One write: lines of several processes on one terminal stay whole.
void write_line(const char* format, va_list arguments) {
  char line[kLine];
  int length = own_number < 0 ? std::snprintf(line, kLine, "bsp: ")
                              : std::snprintf(line, kLine, "bsp: process %d: ", own_number);
  length += std::vsnprintf(line + length, kLine - 1 - length, format, arguments);
  if (length > static_cast<int>(kLine) - 2) length = kLine - 2;
  if (line[length - 1] != '\n') line[length++] = '\n';
  for (int done = 0; done < length;) {
    const ssize_t n = ::write(STDERR_FILENO, line + done, length - done);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) done += static_cast<int>(n);
  }
}

// Streams are flushed here and never again, as _exit() flushes nothing.
[[noreturn]] void leave() {
  std::fflush(nullptr);
  ::_exit(kAbortedExit);
}

}  // namespace

void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  write_line(format, arguments);
  va_end(arguments);
}

void vsay(const char* format, va_list arguments) { write_line(format, arguments); }

void fail_with(const char* format, va_list arguments) {
  std::fflush(nullptr);  // output of the program stands above the message
  write_line(format, arguments);
  if (tell_peers != nullptr) tell_peers();
  leave();
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fail_with(format, arguments);
}

void end_quietly() { leave(); }

void end_for_lost_peer() {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  std::signal(SIGABRT, SIG_DFL);
  std::raise(SIGABRT);
  ::_exit(kAbortedExit);
}

}  // namespace shadowib::bsp
