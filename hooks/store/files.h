// The file operations of a store. Exchangeable: tests use a file system that forgets what was not synced.
//
// For commands. Any thread. Every call returns 0 or an errno. Paths are absolute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowib/base/status.h"

namespace shadowib {

inline constexpr std::size_t kFileStep = 1 << 20;  // bytes of a file that are read or written at once

class Files {
 public:
  virtual ~Files() = default;
  // One level, mode 0700. EEXIST if there is something of that name.
  virtual int make_directory(const std::string& path) = 0;
  // ENOTDIR if it is something else.
  virtual int check_directory(const std::string& path) = 0;
  // A new file, mode 0600, written whole but not synced. Leaves no file behind if it fails.
  virtual int write_new(const std::string& path, std::string_view content) = 0;
  virtual int read(const std::string& path, std::string* content) = 0;
  // Opens a regular file for reading; the descriptor is the caller's.
  virtual int open(const std::string& path, int* fd) = 0;
  // fsync(2) of a file or a directory. *bytes, if asked for, is the file's size at that moment.
  virtual int sync(const std::string& path, std::uint64_t* bytes = nullptr) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  // EEXIST or ENOTEMPTY if `to` exists.
  virtual int rename_if_absent(const std::string& from, const std::string& to) = 0;
  virtual int remove_all(const std::string& path) = 0;
  virtual int list(const std::string& path, std::vector<std::string>* names) = 0;
};

// The file system of this machine. Never destroyed.
Files& system_files();

// kIo for errno `error`: "cannot WHAT PATH: WHY; REMEDY".
Status file_error(int error, const char* what, const std::string& path);

// Creates the directory and its parents (0700) and syncs what was made into the directory above it.
Status ensure_directory(const std::string& path, Files& files = system_files());
// fsync(2) of a file or directory.
Status sync_path(const std::string& path);
Status read_file(const std::string& path, std::string* content, Files& files = system_files());
// Writes a new file (0600) and syncs it; the directory's entry is the caller's to sync.
Status write_new_file(const std::string& path, std::string_view content, Files& files = system_files());

}  // namespace shadowib
