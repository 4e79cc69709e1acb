// Messages to people, and numbers that nobody can guess.
#pragma once

#include <cstdint>

namespace shadowib::masterworker {

// Prints "shadowib-mw: ..." and ends the process with 1: for what no program can go on after.
[[noreturn]] void give_up(const char* format, ...) __attribute__((format(printf, 1, 2)));
void warn(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace shadowib::masterworker
