#include "ib2tcp/host.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace shadowib::ib2tcp {

const HostServices* g_host = nullptr;

void log_message(LogLevel level, const char* format, ...) {
  char text[512];
  int n = std::snprintf(text, sizeof(text), "ib2tcp: ");
  va_list args;
  va_start(args, format);
  std::vsnprintf(text + n, sizeof(text) - static_cast<std::size_t>(n), format, args);
  va_end(args);
  g_host->log(static_cast<int>(level), text);
}

void random_bytes(void* to, std::size_t bytes) {
  auto* at = static_cast<unsigned char*>(to);
  while (bytes > 0) {
    ssize_t n = ::getrandom(at, bytes, 0);
    SHADOWIB_CHECK(n > 0 || errno == EINTR, "getrandom failed");
    if (n <= 0) continue;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

}  // namespace shadowib::ib2tcp
