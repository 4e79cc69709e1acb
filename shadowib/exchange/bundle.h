// Small values of many keys in one file, of which the keys are hard links.
//
// A new name costs a file system much less than a new file. Without a journal ext4 passes each inode that was deleted
// in the last minutes, whenever it makes one.
//
// Some files in PATH/.bundles take values, those of several processes each, one after another. Whoever finds one
// large removes its name there, and begins another. A bundle lives as long as one of its keys.
//
// A record is a mark of 16 bytes, the lengths of key and value in 32 bits each, XXH3 of both in 64 bits, key and
// value. Numbers are little-endian. The first whole record of a key counts; who adds another does not link it. A
// process may be killed, or the file system full, within a record. Readers find the next one by its mark. A file that
// does not begin with the mark is one value.
#pragma once

#include <string>
#include <string_view>

#include "shadowib/exchange/raw_files.h"

namespace shadowib {

// Larger values have files of their own. A bundle that has grown so far takes no more.
inline constexpr std::size_t kBundledBytes = 2048, kBundleBytes = 16384;

// True if `file` is a bundle's content, or looks like one. A value that does is published in a bundle of its own.
bool is_bundle(std::string_view file);

// A record: the content of a bundle with one value.
std::string bundle_with(std::string_view key, std::string_view value);

// Finds the value of `key` in a bundle's content. False: it has none that is whole.
bool find_in_bundle(std::string_view file, std::string_view key, std::string_view* value);

// Adds a value to the file `name` below `root`, which is made if it is not there. Returns the file, to be linked by
// link_file(). Empty with errno; EAGAIN: another file has its place now.
OwnedFd add_to_bundle(int root, const std::string& name, std::string_view key, std::string_view value);

// Gives an open file the name `target` below `root`; 0, or -1 with errno. ENOENT: it has no name any more.
int link_file(int file, int root, const std::string& target);

}  // namespace shadowib
