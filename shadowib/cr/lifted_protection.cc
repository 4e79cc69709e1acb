#include "shadowib/cr/lifted_protection.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "shadowib/base/mappings.h"

namespace shadowib {
namespace {

constexpr std::uint64_t kPage = 4096;

// Not by libc's function, which tells the backend of changes.
int protect(std::uint64_t start, std::uint64_t end, int protection) {
  return ::syscall(SYS_mprotect, start, end - start, protection) == 0 ? 0 : errno;
}

}  // namespace

// 0, or errno if the memory must stay as it is.
int LiftedProtection::find_pieces(std::uint64_t start, std::uint64_t end, int wanted) {
  std::uint64_t covered = start;
  bool executed = false;
  const int error = for_each_mapping([&](const Mapping& m) {
    const std::uint64_t from = std::max(m.start, start), to = std::min(m.end, end);
    if (from >= to) return m.start < end;
    if (from != covered) return false;
    covered = to;
    const int protection = (m.readable ? PROT_READ : 0) | (m.writable ? PROT_WRITE : 0);
    if ((protection & wanted) == wanted) return covered < end;
    executed = executed || m.executable;
    pieces_.push_back({from, to, protection});
    return covered < end;
  });
  if (error != 0) return error;
  return covered < end ? EFAULT : executed ? EACCES : 0;
}

bool LiftedProtection::lift(const void* address, std::size_t bytes, bool write) {
  const auto first = reinterpret_cast<std::uint64_t>(address);
  const int wanted = PROT_READ | (write ? PROT_WRITE : 0);
  if (bytes == 0 || find_pieces(first & ~(kPage - 1), (first + bytes + kPage - 1) & ~(kPage - 1), wanted) != 0)
    pieces_.clear();
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    if (protect(pieces_[i].start, pieces_[i].end, pieces_[i].protection | wanted) != 0) {
      pieces_.resize(i);
      put_back();
      pieces_.clear();
    }
  return !pieces_.empty();
}

int LiftedProtection::put_back() {
  int failed = 0;
  for (const Piece& piece : pieces_)
    if (const int error = protect(piece.start, piece.end, piece.protection); error != 0) failed = error;
  return failed;
}

}  // namespace shadowib
