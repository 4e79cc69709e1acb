// Where the system's libibverbs is, although a directory of the library path offers ours by that name.
#pragma once

#include <string>

namespace shadowib {

// The path of the library that the loader would find by `file` ("libibverbs.so.1") without our drop-in directories.
// It looks in the directories of the library path, in the loader's cache, and in its own directories. `file` itself
// if it has a slash, or nothing is found.
std::string system_library(const char* file);

// The path of `file` in the loader's cache, a file in the form of glibc's ld.so.cache; "" if it is not there. The
// parts of the image are checked.
std::string find_in_loader_cache(const char* image, std::size_t bytes, const char* file);

}  // namespace shadowib
