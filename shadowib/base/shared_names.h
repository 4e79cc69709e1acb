// Names in directories that other hosts change, too.
//
// A client of a network file system answers from memory for a while. NFS by default believes for up to a minute that
// a name is missing, or which file it stands for. Before something of another host is looked for, its directory has
// to be asked about. Where the file system is local this costs a system call. No heap, no descriptor; leaves errno
// alone.
#pragma once

#include <string_view>

namespace shadowib {

// From now on the names directly in `directory` are those the server has. It is relative to the descriptor `at`,
// which may be AT_FDCWD; empty: `at` itself. Directories above it are asked about if it seems to be missing.
void revalidate_directory(int at, std::string_view directory);

// Does so for the directory that holds the file `path`.
void revalidate_parent(std::string_view path);

}  // namespace shadowib
