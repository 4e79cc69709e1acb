#include "hooks/imager/pinned_copies.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "hooks/imager/image_format.h"
#include "hooks/imager/page_copy.h"
#include "hooks/imager/save/mapping_table.h"
#include "hooks/imager/save/page_scan.h"
#include "hooks/imager/save/page_writer.h"
#include "hooks/imager/save/scratch.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "shadowib/base/descriptors.h"

namespace shadowib {
namespace {

constexpr std::uint64_t kAtOnce = 8 << 20;  // that the program's own calls wait for
constexpr long kPopulateWrite = 23;         // MADV_POPULATE_WRITE, Linux 5.14

std::uint64_t up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) & ~(unit - 1); }

// The first address from `at` on that lies in its huge page as `like` does: then whole page tables are moved.
std::uint64_t congruent(std::uint64_t at, std::uint64_t like) { return at + ((like - at) & (kHugePage - 1)); }

bool fill(std::uint64_t start, std::uint64_t end, bool (*goes_on)(void*), void* argument) {
  for (std::uint64_t at = start; at < end; at += kAtOnce) {
    const std::uint64_t part = end - at < kAtOnce ? end - at : kAtOnce;
    if (!goes_on(argument)) return false;
    long result;
    while ((result = raw::invoke(__NR_madvise, at, part, kPopulateWrite)) == -EINTR) {
    }
    if (raw::failed(result)) return false;
  }
  return true;
}

// The room would count, and the program's own memory may have no place beside it.
bool is_limited() {
  for (const int which : {RLIMIT_AS, RLIMIT_DATA}) {
    std::uint64_t limit[2] = {};
    if (raw::failed(raw::invoke(__NR_prlimit64, 0, which, nullptr, limit)) || limit[0] != RLIM_INFINITY) return true;
  }
  return false;
}

// Whether reading all of it is safe, and costs the program no page.
bool is_present(PageScanner* scanner, std::uint64_t start, std::uint64_t end) {
  std::uint64_t at = start;
  scanner->begin(start, end);
  for (PageRange range{}; scanner->next(&range); at = range.end)
    if (range.state != PageState::kContent || range.start != at) return false;
  return at == end && scanner->error() == 0 && !scanner->guards_hidden();
}

}  // namespace

PinnedCopies::Range* PinnedCopies::ranges() const { return reinterpret_cast<Range*>(book_ + 1); }
PinnedCopies::Piece* PinnedCopies::pieces() const { return reinterpret_cast<Piece*>(ranges() + book_->range_count); }
std::uint64_t PinnedCopies::room() const { return book_ == nullptr ? 0 : book_->room; }
std::uint64_t PinnedCopies::bytes() const { return book_ == nullptr ? 0 : book_->copied; }

bool PinnedCopies::prepare(const PinnedRange* ranges, std::uint32_t count, bool (*goes_on)(void*), void* argument) {
  if (is_limited()) return false;
  const std::uint32_t most_pieces = 2 * count + 64;
  const std::uint64_t head = sizeof(Book) + count * sizeof(Range) + most_pieces * sizeof(Piece);
  std::uint64_t bytes = up(head, kPage);
  for (std::uint32_t i = 0; i < count; ++i) bytes += kHugePage + ranges[i].end - ranges[i].start;
  Scratch room;  // the gaps between copies cost nothing, also after mlockall(MCL_FUTURE)
  if (!room.map(bytes)) return false;
  book_ = reinterpret_cast<Book*>(room.start());
  bytes_ = bytes;
  // A child of the program's would have the room for good.
  if (raw::failed(advise(MADV_DONTFORK)) || !own_mapping(book_, bytes_)) {
    room.unmap();
    book_ = nullptr;
    return false;
  }
  advise(MADV_NOHUGEPAGE);
  *book_ = {count, 0, most_pieces, 0, 0};
  std::uint64_t at = room.start() + up(head, kPage);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t copy = congruent(at, ranges[i].start);
    this->ranges()[i] = {ranges[i], copy};
    at = copy + (ranges[i].end - ranges[i].start);
  }
  // In huge pages where they are whole, and the ends in small ones: a copy of 64 KiB would take 2 MiB.
  if (populate(Pages::kHuge, goes_on, argument) && populate(Pages::kSmall, goes_on, argument)) return true;
  end();
  return false;
}

long PinnedCopies::advise(int advice) { return raw::invoke(__NR_madvise, book_, bytes_, advice); }

bool PinnedCopies::populate(Pages pages, bool (*goes_on)(void*), void* argument) {
  advise(pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  for (std::uint32_t i = 0; i < book_->range_count; ++i) {
    const std::uint64_t start = ranges()[i].copy, end = start + (ranges()[i].memory.end - ranges()[i].memory.start);
    std::uint64_t whole = up(start, kHugePage), whole_end = end & ~(kHugePage - 1);
    if (whole >= whole_end) whole = whole_end = end;
    if (pages == Pages::kHuge) {
      if (!fill(whole, whole_end, goes_on, argument)) return false;
    } else if (!fill(start, whole, goes_on, argument) || !fill(whole_end, end, goes_on, argument)) {
      return false;
    }
    if (pages == Pages::kSmall) book_->room += end - start;
  }
  return true;
}

void PinnedCopies::take(std::uint64_t start, std::uint64_t end, std::uint64_t copy) {
  if (book_->piece_count == book_->most_pieces) return;
  if (raw::failed(raw::invoke(__NR_madvise, start, end - start, MADV_DONTFORK))) return;  // vm.max_map_count
  copy_pages(reinterpret_cast<void*>(copy), reinterpret_cast<const void*>(start), end - start);
  pieces()[book_->piece_count++] = {start, end - start, copy};
  book_->copied += end - start;
}

void PinnedCopies::take(const MappingTable& table, void* work) {
  if (book_ == nullptr) return;
  PageScanner scanner;
  if (!scanner.open(work, kWorkBytes) || raw::failed(advise(MADV_DOFORK))) return;
  std::uint32_t m = 0;
  for (std::uint32_t i = 0; i < book_->range_count; ++i) {
    const Range& range = ranges()[i];
    while (m < table.count && table.mappings[m].start + table.mappings[m].length <= range.memory.start) ++m;
    for (std::uint32_t k = m; k < table.count && table.mappings[k].start < range.memory.end; ++k) {
      const MappingRecord& mapping = table.mappings[k];
      if (mapping.kind != MappingKind::kAnonymous || (mapping.protection & PROT_READ) == 0 || !is_copied(table, k))
        continue;
      const std::uint64_t start = mapping.start > range.memory.start ? mapping.start : range.memory.start;
      const std::uint64_t mapping_end = mapping.start + mapping.length;
      const std::uint64_t end = mapping_end < range.memory.end ? mapping_end : range.memory.end;
      if (is_present(&scanner, start, end)) take(start, end, range.copy + (start - range.memory.start));
    }
  }
}

void PinnedCopies::let_fork() {
  if (book_ == nullptr) return;
  advise(MADV_DONTFORK);
  for (std::uint32_t i = 0; i < book_->piece_count; ++i)
    raw::invoke(__NR_madvise, pieces()[i].start, pieces()[i].bytes, MADV_DOFORK);
}

Status PinnedCopies::put_in_place() const {
  for (std::uint32_t i = 0; book_ != nullptr && i < book_->piece_count; ++i) {
    const Piece& piece = pieces()[i];
    const long moved =
        raw::invoke(__NR_mremap, piece.copy, piece.bytes, piece.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, piece.start);
    if (raw::failed(moved))
      return Status::of(Code::kRefused, static_cast<int>(-moved), "copies of registered memory: mremap, errno %ld",
                        -moved);
  }
  return {};
}

void PinnedCopies::end() {
  if (book_ == nullptr) return;
  disown_mapping(book_);
  const std::uint64_t start = reinterpret_cast<std::uint64_t>(book_);
  for (std::uint64_t done = 0; done < bytes_; done += kAtOnce)
    raw::invoke(__NR_munmap, start + done, bytes_ - done < kAtOnce ? bytes_ - done : kAtOnce);
  book_ = nullptr;
}

}  // namespace shadowib
