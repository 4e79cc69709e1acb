// Leading a loaded library's imports elsewhere: what it calls under a name of libc's becomes a function of ours, and
// nobody else's calls change.
#pragma once

#include <link.h>

#include <cstddef>
#include <span>
#include <string_view>

namespace shadowib {

struct ImportTurn {
  const char* symbol;
  void* ours;
};

// A library in memory, of any link namespace. Valid while it stays loaded.
struct LoadedLibrary {
  const char* path;
  ElfW(Addr) base;  // what the file's addresses count from
  std::span<const ElfW(Phdr)> segments;
};

// The library behind an entry of a loader's list; no segments if its headers are not in memory. The list and what it
// names must not change meanwhile.
LoadedLibrary library_of(const link_map& map);

// The file's name without its directories; "" for the program.
const char* file_name(const char* path);

// Turns every import that `turns` names. Calls it makes at this moment see the old or the new function. Logs an
// import whose table cannot be written. Not safe against an unload of the library.
void turn_imports(const LoadedLibrary& library, std::span<const ImportTurn> turns);

// The imports that are turned in libraries whose file names begin with `name`.
struct LibraryTurns {
  std::string_view name;
  std::span<const ImportTurn> turns;
};
// In all that the caller's link namespace has loaded by now.
void turn_loaded_imports(std::span<const LibraryTurns> libraries);

}  // namespace shadowib
