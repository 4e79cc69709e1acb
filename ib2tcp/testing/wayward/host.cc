// Instead of ib2tcp/host.cc: numbers are no accident.
#include "ib2tcp/host.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "ib2tcp/testing/wayward/wayward.h"

namespace shadowib::ib2tcp {

const HostServices* g_host = nullptr;

void log_message(LogLevel level, const char* format, ...) {
  char text[512];
  int n = std::snprintf(text, sizeof(text), "wayward: ");
  va_list args;
  va_start(args, format);
  std::vsnprintf(text + n, sizeof(text) - static_cast<std::size_t>(n), format, args);
  va_end(args);
  g_host->log(static_cast<int>(level), text);
}

void random_bytes(void* to, std::size_t bytes) {
  const std::uint32_t number = wayward_first_number();
  std::memset(to, 0, bytes);
  std::memcpy(to, &number, bytes < sizeof(number) ? bytes : sizeof(number));
}

}  // namespace shadowib::ib2tcp
