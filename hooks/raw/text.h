// Reading /proc as text with no libc behind it: usable in a signal handler and while every other thread is parked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shadowib {

// Reads a small file whole into buffer[0..capacity), ends it with a zero byte. Returns its length or a negative
// errno; what does not fit is cut off.
long read_small_file(const char* path, char* buffer, std::size_t capacity);

// Reads a status file of /proc likewise. A process may have 65,536 groups, which would leave no room for the fields
// behind: the line "Groups:" holds a hash of them.
long read_status_file(const char* path, char* buffer, std::size_t capacity);

// Finds `name` (with its colon) at the start of a line of a /proc status file and reads the hexadecimal number behind
// it (decimal if `base` is 10). False if the file or the field is missing.
bool read_status_field(const char* path, const char* name, std::uint64_t* value, int base = 16);

// Parses digits of `base` at *text and moves *text behind them.
std::uint64_t parse_number(const char** text, int base);

// Points behind `name` where it starts a line of text; nullptr if it does not.
const char* find_line(const char* text, const char* name);

}  // namespace shadowib
