#include "hooks/imager/restore/file_check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace shadowib {

int SameFiles::open_path(const std::string& path, const MappingRecord& m) {
  if (path.empty() || path[0] != '/') return -1;
  const auto known = open_.find(path);
  if (known != open_.end()) return known->second;
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat info {};
  if (fd >= 0 && (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) ||
                  static_cast<std::uint64_t>(info.st_size) != m.file_bytes)) {
    ::close(fd);
    fd = -1;
  }
  open_[path] = fd;
  return fd;
}

bool SameFiles::same_content(std::size_t index, int fd) {
  if (batches_.empty()) {
    batches_.resize(image_.mappings.size());
    for (const PageBatch& b : image_.batches)
      if ((b.flags & kPagesClean) != 0) batches_[b.mapping].push_back(&b);
  }
  const MappingRecord& m = image_.mappings[index];
  for (const PageBatch* b : batches_[index]) {
    // A record that is damaged differs, is read again where its pages are needed, and refused there.
    if (!files_.read(*b, &saved_).ok()) return false;
    const std::uint8_t* data = saved_.data();
    for (std::uint32_t i = 0; i < b->run_count; ++i) {
      const LoadedRun& run = image_.runs[b->first_run + i];
      current_.assign(run.length, 0);  // behind the end of the file the last page is zero
      const ssize_t n =
          ::pread(fd, current_.data(), run.length, static_cast<off_t>(run.address - m.start + m.offset));
      if (n < 0 || std::memcmp(current_.data(), data, run.length) != 0) return false;
      data += run.length;
    }
  }
  return true;
}

int SameFiles::open(std::size_t index) {
  const MappingRecord& m = image_.mappings[index];
  const int fd = open_path(image_.paths[index], m);
  if (fd < 0 || !same_content(index, fd)) return -1;
  // A file system mounted noexec, or a security module, may say no: better now than in the restorer.
  void* trial = ::mmap(nullptr, m.length, static_cast<int>(m.protection), MAP_PRIVATE | MAP_NORESERVE, fd,
                       static_cast<off_t>(m.offset));
  if (trial == MAP_FAILED) return -1;
  ::munmap(trial, m.length);
  used_.insert(fd);
  return fd;
}

void SameFiles::close_unused() {
  for (auto& [path, fd] : open_) {
    if (fd < 0 || used_.contains(fd)) continue;
    ::close(fd);
    fd = -1;
  }
}

}  // namespace shadowib
