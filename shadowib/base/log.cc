#include "shadowib/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "shadowib/base/descriptors.h"
#include "shadowib/base/unowned_descriptors.h"

namespace shadowib {
namespace {

std::atomic<int> g_level{static_cast<int>(LogLevel::kWarn)};
std::atomic<int> g_fd{-1};
char g_path[512];

int level_of(const char* name, std::size_t length) {
  static constexpr const char* kNames[] = {"error", "warn", "info", "debug"};
  for (int i = 0; i < 4; ++i)
    if (std::strlen(kNames[i]) == length && std::strncmp(kNames[i], name, length) == 0) return i;
  return static_cast<int>(LogLevel::kWarn);
}

int log_descriptor() {
  if (g_path[0] == '\0') return STDERR_FILENO;
  int fd = g_fd.load(std::memory_order_relaxed);
  if (fd >= 0) return fd;
  UnownedDescriptors unowned;
  int opened = ::open(g_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (opened < 0) return STDERR_FILENO;
  fd = unowned.own(opened);
  int expected = -1;
  if (!g_fd.compare_exchange_strong(expected, fd)) {
    close_owned_descriptor(fd);
    fd = expected;
  }
  return fd;
}

void write_line(const char* format, va_list args) {
  char line[1024];
  int n = std::snprintf(line, sizeof(line), "shadowib[%d]: ", static_cast<int>(::getpid()));
  int m = std::vsnprintf(line + n, sizeof(line) - n - 1, format, args);
  if (m < 0) return;
  n += m;
  if (n > static_cast<int>(sizeof(line)) - 2) n = static_cast<int>(sizeof(line)) - 2;
  line[n++] = '\n';
  int saved = errno;
  [[maybe_unused]] auto written = ::write(log_descriptor(), line, static_cast<std::size_t>(n));
  errno = saved;
}

void follow(const char* setting) {
  const char* colon = std::strchr(setting, ':');
  std::size_t length = colon ? static_cast<std::size_t>(colon - setting) : std::strlen(setting);
  g_level = level_of(setting, length);
  std::snprintf(g_path, sizeof(g_path), "%s", colon ? colon + 1 : "");
}

}  // namespace

void log_init_from_environment() {
  if (const char* setting = std::getenv("SHADOWIB_LOG")) follow(setting);
}

void log_restart(const char* setting) {
  g_fd = -1;
  if (setting != nullptr && setting[0] != '\0') follow(setting);
}

bool log_enabled(LogLevel level) { return static_cast<int>(level) <= g_level.load(std::memory_order_relaxed); }

void log_line(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) return;
  va_list args;
  va_start(args, format);
  write_line(format, args);
  va_end(args);
}

void check_failed(const char* file, int line, const char* condition, const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  log_line(LogLevel::kError, "%s:%d: broken invariant: %s %s", file, line, condition, text);
  std::abort();
}

}  // namespace shadowib
