// Log lines and CHECK. Writes with write(2) to a descriptor of ours; no stdio, no heap.
#pragma once

#include <cstdarg>

namespace shadowib {

enum class LogLevel : int { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

// Reads SHADOWIB_LOG=level[:file] once; the default is warn to standard error. `level` is one of
// error, warn, info, debug. A file is opened for appending at the first line written, not before.
void log_init_from_environment();

// Forgets the descriptor of the log file: a forked child closed it, a restarted process never had it. Unless
// `setting` is null or empty, follows it instead of the environment from now on.
void log_restart(const char* setting);

bool log_enabled(LogLevel level);

// One line "shadowib[pid]: text\n", at most 1023 bytes, written whole. Async-signal-safe as far as vsnprintf is.
void log_line(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Prints file, line and text, then aborts. Stays on in release builds.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

}  // namespace shadowib

#define SHADOWIB_CHECK(condition, ...)                                                                               \
  do {                                                                                                               \
    if (__builtin_expect(!(condition), 0)) ::shadowib::check_failed(__FILE__, __LINE__, #condition, "" __VA_ARGS__); \
  } while (0)
