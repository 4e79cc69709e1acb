// Names in a directory, read with getdents64: opendir would call the program's malloc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shadowib {

class DirectoryReader {
 public:
  explicit DirectoryReader(const char* path);
  ~DirectoryReader();
  DirectoryReader(const DirectoryReader&) = delete;
  DirectoryReader& operator=(const DirectoryReader&) = delete;
  // The next name, valid until the next call; nullptr at the end or if the directory cannot be read.
  const char* next();

 private:
  long fd_;
  long filled_ = 0, at_ = 0;
  alignas(8) char buffer_[4096];
};

}  // namespace shadowib
