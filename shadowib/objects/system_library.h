// Where a library of the system's lies, past the drop-in directory of ours that `shadowib run` puts before it.
#pragma once

#include <string>

namespace shadowib {

// The path of `name` as the loader's directories have it (LD_LIBRARY_PATH, then the system's), without those that
// hold a drop-in of ours. `name` itself if it is a path, or in none of them: the loader's cache may still know it.
std::string system_library(const char* name);

}  // namespace shadowib
