#include "hooks/imager/save/page_scan.h"

#include <errno.h>
#include <fcntl.h>

#include "hooks/imager/image_format.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "shadowib/base/proc_queries.h"

namespace shadowib {
namespace {

// PAGE_IS_... of PAGEMAP_SCAN; guard pages are told from Linux 6.15 on.
constexpr std::uint64_t kIsFile = 1 << 2, kIsPresent = 1 << 3, kIsSwapped = 1 << 4, kIsZero = 1 << 5,
                        kIsGuard = 1 << 8;

// Documentation/admin-guide/mm/pagemap.rst
constexpr std::uint64_t kMapPresent = 1ull << 63, kMapSwapped = 1ull << 62, kMapFile = 1ull << 61,
                        kMapGuard = 1ull << 58;

// No page is there: one was swapped out, or the kernel has taken it away since it is broken.
PageState state_of(bool is_guard, bool is_file, bool is_present) {
  if (is_guard) return PageState::kGuard;
  if (is_file) return PageState::kFile;
  return is_present ? PageState::kContent : PageState::kAway;
}

}  // namespace

bool PageScanner::open(void* buffer, std::uint64_t buffer_bytes) {
  fd_ = raw::invoke(__NR_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC, 0);
  if (fd_ < 0) {
    error_ = static_cast<int>(-fd_);
    return false;
  }
  capacity_ = static_cast<std::uint32_t>(buffer_bytes / 2 / sizeof(PageRange));
  ranges_ = static_cast<PageRange*>(buffer);
  raw_ = ranges_ + capacity_;
  raw_bytes_ = buffer_bytes / 2 & ~7ull;
  if (raw_bytes_ / 8 > capacity_) raw_bytes_ = capacity_ * 8ull;
  return true;
}

PageScanner::~PageScanner() {
  if (fd_ >= 0) raw::invoke(__NR_close, fd_);
}

void PageScanner::begin(std::uint64_t start, std::uint64_t end) {
  cursor_ = start;
  end_ = end;
  count_ = taken_ = 0;
  guards_only_ = false;
}

void PageScanner::begin_guards(std::uint64_t start, std::uint64_t end) {
  begin(start, end);
  guards_only_ = true;
}

bool PageScanner::next(PageRange* range) {
  while (taken_ == count_) {
    if (cursor_ >= end_ || error_ != 0 || !fill()) return false;
  }
  *range = ranges_[taken_++];
  return true;
}

bool PageScanner::fill() {
  count_ = taken_ = 0;
  if (guards_only_ && (!use_ioctl_ || !guard_known_)) return false;
  if (use_ioctl_) {
    if (fill_by_ioctl()) return true;
    if (use_ioctl_ || guards_only_) return false;
  }
  return fill_by_read();
}

void PageScanner::add(std::uint64_t start, std::uint64_t end, PageState state) {
  if (count_ > 0 && ranges_[count_ - 1].end == start && ranges_[count_ - 1].state == state)
    ranges_[count_ - 1].end = end;
  else
    ranges_[count_++] = PageRange{start, end, state};
}

bool PageScanner::fill_by_ioctl() {
  auto* regions = static_cast<PageRegion*>(raw_);
  PmScanArg arg{};
  arg.size = sizeof(arg);
  arg.start = cursor_;
  arg.end = end_;
  arg.vec = reinterpret_cast<std::uint64_t>(regions);
  arg.vec_len = raw_bytes_ / sizeof(PageRegion);
  arg.category_anyof_mask = guards_only_ ? kIsGuard : kIsPresent | kIsSwapped;
  arg.return_mask = kIsPresent | kIsSwapped | kIsFile | kIsZero | (guard_known_ ? kIsGuard : 0);
  const long n = raw::invoke(__NR_ioctl, fd_, kPagemapScan, &arg);
  if (n == -EINVAL && guard_known_) {
    guard_known_ = false;
    return !guards_only_ && fill_by_ioctl();
  }
  if (n == -ENOTTY || n == -EINVAL) {
    use_ioctl_ = false;
    return false;
  }
  if (n < 0) {
    if (n == -EINTR) return true;
    error_ = static_cast<int>(-n);
    return false;
  }
  for (long i = 0; i < n; ++i) {
    const PageRegion& r = regions[i];
    const bool is_guard = (r.categories & kIsGuard) != 0;
    if (is_guard || (r.categories & kIsZero) == 0)
      add(r.start, r.end, state_of(is_guard, (r.categories & kIsFile) != 0, (r.categories & kIsPresent) != 0));
  }
  cursor_ = arg.walk_end > cursor_ ? arg.walk_end : end_;
  return true;
}

bool PageScanner::fill_by_read() {
  auto* entries = static_cast<std::uint64_t*>(raw_);
  std::uint64_t wanted = (end_ - cursor_) / kPage * 8;
  if (wanted > raw_bytes_) wanted = raw_bytes_;
  const long n = raw::invoke(__NR_pread64, fd_, entries, wanted, cursor_ / kPage * 8);
  if (n == -EINTR) return true;
  if (n <= 0) {
    error_ = n == 0 ? EIO : static_cast<int>(-n);
    return false;
  }
  for (long i = 0; i < n / 8; ++i, cursor_ += kPage) {
    const std::uint64_t e = entries[i];
    if ((e & (kMapPresent | kMapSwapped)) == 0) continue;
    add(cursor_, cursor_ + kPage, state_of((e & kMapGuard) != 0, (e & kMapFile) != 0, (e & kMapPresent) != 0));
  }
  return true;
}

}  // namespace shadowib
