#include "ib2tcp/host.h"

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

}  // namespace shadowib::ib2tcp
