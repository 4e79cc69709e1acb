#include "hooks/raw/directory_reader.h"

#include <fcntl.h>

#include "hooks/raw/x86_64/raw_syscall.h"

namespace shadowib {
namespace {

struct Entry {  // struct linux_dirent64
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t length;
  std::uint8_t type;
  char name[1];
};

}  // namespace

DirectoryReader::DirectoryReader(const char* path)
    : fd_(raw::invoke(__NR_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0)) {}

DirectoryReader::~DirectoryReader() {
  if (fd_ >= 0) raw::invoke(__NR_close, fd_);
}

const char* DirectoryReader::next() {
  if (fd_ < 0) return nullptr;
  if (at_ >= filled_) {
    filled_ = raw::invoke(__NR_getdents64, fd_, buffer_, sizeof(buffer_));
    at_ = 0;
    if (filled_ <= 0) return nullptr;
  }
  const auto* entry = reinterpret_cast<const Entry*>(buffer_ + at_);
  at_ += entry->length;
  return entry->name;
}

}  // namespace shadowib
