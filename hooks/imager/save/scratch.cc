#include "hooks/imager/save/scratch.h"

#include <sys/mman.h>

#include "hooks/imager/image_format.h"
#include "hooks/raw/x86_64/raw_syscall.h"

namespace shadowib {

// After mlockall(MCL_FUTURE) the kernel fills each new mapping and counts it against RLIMIT_MEMLOCK. Growing a
// mapping that is not locked does neither.
bool Scratch::map(std::size_t bytes) {
  const long page =
      raw::invoke(__NR_mmap, nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw::failed(page)) return false;
  raw::invoke(__NR_munlock, page, kPage);
  const long at = raw::invoke(__NR_mremap, page, kPage, bytes, MREMAP_MAYMOVE);
  if (raw::failed(at)) {
    raw::invoke(__NR_munmap, page, kPage);
    return false;
  }
  if (raw::failed(raw::invoke(__NR_mprotect, at, bytes, PROT_READ | PROT_WRITE))) {
    raw::invoke(__NR_munmap, at, bytes);
    return false;
  }
  start_ = static_cast<std::uint64_t>(at);
  bytes_ = bytes;
  used_ = 0;
  return true;
}

void Scratch::unmap() {
  if (bytes_ != 0) raw::invoke(__NR_munmap, start_, bytes_);
  start_ = bytes_ = used_ = 0;
}

void* Scratch::take(std::size_t bytes, std::size_t alignment) {
  const std::uint64_t at = (start_ + used_ + alignment - 1) & ~(static_cast<std::uint64_t>(alignment) - 1);
  if (at + bytes > start_ + bytes_) return nullptr;
  used_ = at + bytes - start_;
  return reinterpret_cast<void*>(at);
}

std::uint8_t* Scratch::take_rest(std::size_t* bytes) {
  auto* at = static_cast<std::uint8_t*>(take(0));
  *bytes = at == nullptr ? 0 : bytes_ - used_;
  used_ = bytes_;
  return at;
}

}  // namespace shadowib
