// Which pages of a range hold something, without touching those that do not.
#pragma once

#include <cstdint>

namespace shadowib {

enum class PageState : std::uint32_t {
  kContent,  // present
  kAway,     // swapped out, or broken (poisoned): reading may fail, and raise SIGBUS
  kFile,     // still the file's page (private file mappings)
  kGuard,    // MADV_GUARD_INSTALL
};

struct PageRange {
  std::uint64_t start, end;
  PageState state;
};

// Walks /proc/self/pagemap. PAGEMAP_SCAN (Linux 6.7) skips empty page tables, so that terabytes of reserved addresses
// cost nothing; older kernels are read in big pieces.
class PageScanner {
 public:
  // `buffer` of buffer_bytes is the scanner's work space.
  bool open(void* buffer, std::uint64_t buffer_bytes);
  ~PageScanner();
  PageScanner() = default;
  PageScanner(const PageScanner&) = delete;
  PageScanner& operator=(const PageScanner&) = delete;

  // Starts on [start, end).
  void begin(std::uint64_t start, std::uint64_t end);
  // Starts on [start, end) and delivers guard regions alone. A kernel that does not tell of them delivers none.
  void begin_guards(std::uint64_t start, std::uint64_t end);
  // Delivers the next range, ascending. False at the end; then error() is 0 or an errno.
  bool next(PageRange* range);
  int error() const { return error_; }
  // True on kernels that have MADV_GUARD_INSTALL (6.13) but do not tell where (6.15): reading may fault. Known after
  // next().
  bool guards_hidden() const { return use_ioctl_ && !guard_known_; }

 private:
  bool fill();
  bool fill_by_ioctl();
  bool fill_by_read();
  void add(std::uint64_t start, std::uint64_t end, PageState state);

  long fd_ = -1;
  bool use_ioctl_ = true;
  bool guard_known_ = true;
  bool guards_only_ = false;
  int error_ = 0;
  std::uint64_t cursor_ = 0, end_ = 0;
  PageRange* ranges_ = nullptr;
  std::uint32_t capacity_ = 0, count_ = 0, taken_ = 0;
  void* raw_ = nullptr;
  std::uint64_t raw_bytes_ = 0;
};

}  // namespace shadowib
