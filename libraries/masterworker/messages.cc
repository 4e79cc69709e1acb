#include "libraries/masterworker/messages.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>

namespace shadowib::masterworker {
namespace {

void say(const char* format, va_list arguments) {
  char text[600];
  std::vsnprintf(text, sizeof(text), format, arguments);
  std::fprintf(stderr, "shadowib-mw: %s\n", text);
}

}  // namespace

void give_up(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(format, arguments);
  va_end(arguments);
  std::fflush(nullptr);
  ::_exit(1);
}

void warn(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say(format, arguments);
  va_end(arguments);
}

}  // namespace shadowib::masterworker
