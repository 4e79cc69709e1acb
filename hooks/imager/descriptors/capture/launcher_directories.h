// Directories that go when the launcher does (note_launcher_directory()). Mapped files in them are shared memory, as
// in /dev/shm: nobody else keeps them for a restart.
#pragma once

#include <string_view>

namespace shadowib::descriptors {

// Any thread; no heap.
bool is_in_launcher_directory(std::string_view path);

}  // namespace shadowib::descriptors
