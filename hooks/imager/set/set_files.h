// Names and files below <directory>/sets. For commands.
#pragma once

#include <cstdint>
#include <string>

#include "shadowib/base/status.h"

namespace shadowib {

// "<job>.<NNNN>"; NNNN has four digits or more.
std::string set_name(const std::string& job, std::uint32_t number);
bool parse_set_name(const std::string& name, std::string* job, std::uint32_t* number);
// ".<job>.<NNNN>.staging-<random>" (being written) or ".<job>.<NNNN>.removing-<random>" (being removed).
bool parse_hidden_name(const std::string& name, std::string* job, std::uint32_t* number);

// Creates the directory (0700), its parents too. kIo with the path and the remedy.
Status ensure_directory(const std::string& path);
// fsync(2) of a file or directory.
Status sync_path(const std::string& path);
Status read_file(const std::string& path, std::string* content);
// Writes a new file (0600) and syncs it.
Status write_new_file(const std::string& path, const std::string& content);
// kIo for errno `err`, with path and remedy.
Status file_error(int err, const char* what, const std::string& path);

// Removes a committed set: hides it by a rename first, so that nobody ever lists half of it. Syncs nothing.
Status remove_set(const std::string& set_path);
// Removes what an interrupted checkpoint or removal left. Refuses (kUsage) a path that is not a hidden set directory.
Status remove_hidden(const std::string& path);

}  // namespace shadowib
