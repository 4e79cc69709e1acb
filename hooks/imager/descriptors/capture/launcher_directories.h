// Directories that go when the launcher does (note_launcher_directory()). What a process has mapped of the files in
// them is memory that it shares, as in /dev/shm: nobody keeps it for a restart.
#pragma once

#include <string_view>

namespace shadowib::descriptors {

// Any thread; no heap.
bool is_in_launcher_directory(std::string_view path);

}  // namespace shadowib::descriptors
