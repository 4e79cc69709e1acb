#include "hooks/imager/save/page_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <new>

#include "hooks/imager/borrowed_runs.h"
#include "hooks/imager/page_copy.h"
#include "hooks/imager/save/page_scan.h"
#include "hooks/raw/x86_64/raw_syscall.h"

namespace shadowib {
namespace {

constexpr std::uint64_t kScanBytes = 512 << 10;
constexpr std::uint64_t kLargestGap = 2 << 20;   // between mappings that are scanned together
constexpr std::uint64_t kLeastGiven = 16 << 20;  // smaller mappings may be of libraries, also of shadowib's
constexpr std::uint32_t kNeighbours = 8;         // of a mapping, that may be of the same library

bool is_zero_page(const std::uint8_t* page) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(page);
  for (std::uint64_t i = 0; i < kPage / 8; i += 8) {
    const std::uint64_t any = words[i] | words[i + 1] | words[i + 2] | words[i + 3] | words[i + 4] | words[i + 5] |
                              words[i + 6] | words[i + 7];
    if (any != 0) return false;
  }
  return true;
}

// Whether a neighbour maps code of the same file: its loader maps a library in pieces.
bool is_code(const MappingTable& table, std::uint32_t index) {
  const MappingRecord& m = table.mappings[index];
  const auto same_file = [&](const MappingRecord& other) {
    return other.path_bytes == m.path_bytes &&
           __builtin_memcmp(table.strings + other.path_offset, table.strings + m.path_offset, m.path_bytes) == 0;
  };
  const std::uint32_t begin = index < kNeighbours ? 0 : index - kNeighbours;
  const std::uint32_t end = index + kNeighbours < table.count ? index + kNeighbours + 1 : table.count;
  for (std::uint32_t i = begin; i < end; ++i)
    if ((table.mappings[i].protection & PROT_EXEC) != 0 && same_file(table.mappings[i])) return true;
  return false;
}

}  // namespace

bool is_copied(const MappingTable& table, std::uint32_t index) {
  const MappingRecord& m = table.mappings[index];
  if ((m.advice & (kAdviceDontFork | kAdviceWipeOnFork | kAdviceDroppable)) != 0) return false;
  return m.kind == MappingKind::kAnonymous || (m.kind == MappingKind::kPrivateFile && is_code(table, index));
}

class PageWriter {
 public:
  PageWriter(void* work, ImageWriter* writer, std::uint8_t* borrowed)
      : work_(work), writer_(writer), borrowed_(borrowed), hashed_(borrowed != nullptr) {}
  ~PageWriter() {
    if (memory_ >= 0) raw::invoke(__NR_close, memory_);
  }
  PageWriter(const PageWriter&) = delete;
  PageWriter& operator=(const PageWriter&) = delete;

  void set_base(BaseIndex* base) { base_ = base; }
  void give_back(const std::uint64_t* needed, std::uint32_t count) { needed_ = needed, needed_count_ = count; }

  Status start() {
    memory_ = raw::invoke(__NR_openat, AT_FDCWD, "/proc/self/mem", O_RDONLY | O_CLOEXEC, 0);
    if (memory_ < 0 || !scanner_.open(work_, kScanBytes))
      return Status::of(Code::kPermission, scanner_.error(),
                        "cannot read this process's memory through /proc/self/mem and /proc/self/pagemap (errno %d); "
                        "mount /proc, and see hidepid and the security module",
                        memory_ < 0 ? static_cast<int>(-memory_) : scanner_.error());
    return {};
  }

  // Private memory without a file is scanned together where it lies together: a call for each of many small mappings
  // costs more than its pages.
  Status all(const MappingTable& table, PagePart part) {
    table_ = &table;
    const auto is_here = [&](std::uint32_t i) {
      return part == PagePart::kAll || is_copied(table, i) == (part == PagePart::kCopied);
    };
    for (std::uint32_t i = 0; i < table.count;) {
      std::uint32_t end = i + 1;
      if (!is_here(i)) {
      } else if (!is_plain(table.mappings[i])) {
        SHADOWIB_TRY(mapping(table.mappings[i], i));
      } else {
        while (end < table.count && is_plain(table.mappings[end]) && is_here(end) &&
               table.mappings[end].start - end_of(table.mappings[end - 1]) <= kLargestGap)
          ++end;
        SHADOWIB_TRY(plain(table, i, end));
      }
      i = end;
    }
    SHADOWIB_TRY(flush_all());
    return flush_guards();
  }

  // Addresses in the records are offsets in the segment.
  Status segment(const SharedMemory& s, std::uint32_t index) {
    if (s.low >= s.bytes) return {};
    mapping_ = index;
    direct_ = keep_zeros_ = false;
    if (s.fd >= 0) {
      source_ = s.fd;
      SHADOWIB_TRY(file(s.fd, s.bytes));
    } else {
      source_ = memory_;
      bias_ = s.view - s.low;
      SHADOWIB_TRY(
          shared_memory(s.view, s.view + ((s.bytes - s.low + kPage - 1) & ~(kPage - 1)), kPagesShared, s.in_memory));
    }
    source_ = memory_;
    bias_ = 0;
    return finish_mapping();
  }

 private:
  static std::uint64_t end_of(const MappingRecord& m) { return m.start + m.length; }
  static bool is_plain(const MappingRecord& m) {
    return m.kind == MappingKind::kAnonymous && (m.advice & kAdviceDroppable) == 0;
  }

  Status plain(const MappingTable& table, std::uint32_t begin, std::uint32_t end) {
    keep_zeros_ = false;
    source_ = memory_;
    bias_ = 0;
    std::uint32_t at = begin, judged = ~0u;
    scanner_.begin(table.mappings[begin].start, end_of(table.mappings[end - 1]));
    PageRange range;
    while (scanner_.next(&range)) {
      while (at < end && end_of(table.mappings[at]) <= range.start) ++at;
      for (std::uint32_t i = at; i < end && table.mappings[i].start < range.end; ++i) {
        const MappingRecord& m = table.mappings[i];
        PageRange piece = range;
        if (piece.start < m.start) piece.start = m.start;
        if (piece.end > end_of(m)) piece.end = end_of(m);
        if (i != judged) may_go(m);
        mapping_ = judged = i;
        // Plain readable memory is copied directly; whatever may fault is read through /proc/self/mem.
        direct_ = (m.protection & PROT_READ) != 0 && !scanner_.guards_hidden() && range.state == PageState::kContent;
        SHADOWIB_TRY(piece.state == PageState::kGuard ? guard(piece) : content(piece));
      }
    }
    goes_ = false;
    return finish_mapping();
  }

  Status mapping(const MappingRecord& m, std::uint32_t index) {
    mapping_ = index;
    direct_ = false;
    // A page of zeros is only the same as none where nothing lies beneath.
    keep_zeros_ = m.kind == MappingKind::kPrivateFile;
    source_ = memory_;
    bias_ = 0;
    if (m.kind == MappingKind::kSharedFile || m.kind == MappingKind::kSharedMemory ||
        (m.advice & kAdviceDroppable) != 0)
      return guards(m.start, m.start + m.length);
    if (m.kind == MappingKind::kPrivateFile) return private_file(m);
    SHADOWIB_TRY(guards(m.start, m.start + m.length));
    return shared_memory(m.start, m.start + m.length, 0, true);
  }

  // Pages that the scan shows as present. Where guard regions are hidden, they may be among them.
  Status content(const PageRange& range) {
    is_content_ = !scanner_.guards_hidden();
    const Status status = copy(range.start, range.end, 0);
    is_content_ = false;
    return status;
  }

  // Pages without flags wait for those of later mappings.
  Status finish_mapping() {
    if (flags_ != 0) SHADOWIB_TRY(flush_all());
    if (scanner_.error() != 0)
      return Status::of(Code::kInternal, scanner_.error(), "cannot read /proc/self/pagemap: errno %d",
                        scanner_.error());
    return {};
  }

  // Modified pages and the file's own are kept apart: a restart that finds the same file maps it and takes only the
  // former.
  Status private_file(const MappingRecord& m) {
    const std::uint64_t end = m.start + m.length;
    std::uint64_t clean = m.start;
    scanner_.begin(m.start, end);
    PageRange range;
    while (scanner_.next(&range)) {
      if (range.state == PageState::kFile) continue;
      SHADOWIB_TRY(copy(clean, range.start, kPagesClean));
      SHADOWIB_TRY(range.state == PageState::kGuard ? guard(range) : content(range));
      clean = range.end;
    }
    SHADOWIB_TRY(copy(clean, end, kPagesClean));
    return finish_mapping();
  }

  // Pages of shared memory may be swapped out of the page cache without a trace in this process's page table, so what
  // is not resident is only left out where there is no swap at all; what is on a disk never.
  Status shared_memory(std::uint64_t start, std::uint64_t end, std::uint32_t flags, bool in_memory) {
    std::uint8_t resident[4096];
    for (std::uint64_t at = start; at < end;) {
      std::uint64_t pages = (end - at) / kPage;
      if (pages > sizeof(resident)) pages = sizeof(resident);
      const long result = raw::invoke(__NR_mincore, at, pages * kPage, resident);
      for (std::uint64_t i = 0; i < pages; ++i)
        if (result != 0 || !in_memory || swap_possible() || (resident[i] & 1) != 0)
          SHADOWIB_TRY(copy(at + i * kPage - bias_, at + (i + 1) * kPage - bias_, flags));
      at += pages * kPage;
    }
    return finish_mapping();
  }

  // A descriptor of ours alone, so that its offset may move. Holes are not read, and so not filled.
  Status file(int fd, std::uint64_t bytes) {
    for (std::uint64_t at = 0; at < bytes;) {
      const long data = raw::invoke(__NR_lseek, fd, at, 3 /* SEEK_DATA */);
      if (data == -ENXIO) break;
      if (data < 0) return copy(at, bytes, kPagesShared);
      const long hole = raw::invoke(__NR_lseek, fd, data, 4 /* SEEK_HOLE */);
      at = hole < 0 || static_cast<std::uint64_t>(hole) > bytes ? bytes : static_cast<std::uint64_t>(hole);
      SHADOWIB_TRY(
          copy(static_cast<std::uint64_t>(data) & ~(kPage - 1), (at + kPage - 1) & ~(kPage - 1), kPagesShared));
    }
    return {};
  }

  bool swap_possible() {
    if (swap_ < 0) {
      // struct sysinfo: the ninth long, behind uptime, loads, totalram, freeram, sharedram and bufferram.
      long info[16] = {};
      raw::invoke(__NR_sysinfo, info);
      swap_ = info[8] != 0;
    }
    return swap_ != 0;
  }

  // Of a mapping whose content is not found by the scan of its pages.
  Status guards(std::uint64_t start, std::uint64_t end) {
    scanner_.begin_guards(start, end);
    PageRange range;
    while (scanner_.next(&range)) SHADOWIB_TRY(guard(range));
    return finish_mapping();
  }

  // Gathered: they lie between stacks, whose pages would each be a record of their own.
  Status guard(const PageRange& range) {
    if (guard_count_ == kRunsPerRecord) SHADOWIB_TRY(flush_guards());
    if (guard_count_ == 0) guard_mapping_ = mapping_;
    guards_[guard_count_++] = PageRun{range.start, range.end - range.start};
    return {};
  }

  Status flush_guards() {
    if (guard_count_ == 0) return {};
    SHADOWIB_TRY(flush());
    put_runs(guard_mapping_, guards_, guard_count_, 0);
    guard_count_ = 0;
    return writer_->pages_record(kPagesGuard, 0);
  }

  void put_runs(std::uint32_t mapping, const PageRun* runs, std::uint32_t count, std::uint64_t pages) {
    std::uint8_t* buffer = writer_->page_buffer();
    __builtin_memset(buffer, 0, kPage);
    auto* header = reinterpret_cast<PagesHeader*>(buffer + sizeof(RecordHeader));
    *header = PagesHeader{mapping, count, pages};
    __builtin_memcpy(header + 1, runs, count * sizeof(PageRun));
  }

  std::uint64_t head_bytes() const { return hashed_ ? 2 * kPage : kPage; }
  // Hashed where it lies: what a base has is not copied.
  bool is_compared_in_place() const { return direct_ && base_ != nullptr; }
  std::uint64_t most_pages() const { return hashed_ ? kHashedPagesPerRecord : kPagesPerRecord; }
  std::uint8_t* place_of(std::uint64_t page) const { return writer_->page_buffer() + head_bytes() + page * kPage; }

  Status copy(std::uint64_t start, std::uint64_t end, std::uint32_t flags) {
    if (flags != flags_) SHADOWIB_TRY(flush_all());
    flags_ = flags;
    while (start < end) {
      if (borrowed_bytes_ + (most_pages() + 1) * BorrowedRunCoder::kMostBytes > kMostShortRunBytes)
        SHADOWIB_TRY(flush_all());
      std::uint64_t pages = (end - start) / kPage;
      if (pages > most_pages() - pages_) pages = most_pages() - pages_;
      std::uint8_t* from = place_of(pages_);
      std::uint64_t got = pages * kPage;
      if (!direct_)
        SHADOWIB_TRY(read(start, from, &got));
      else if (is_compared_in_place())
        from = reinterpret_cast<std::uint8_t*>(start);
      else
        copy_pages(from, reinterpret_cast<const void*>(start), got);
      SHADOWIB_TRY(keep(start, from, got / kPage));
      start += got == 0 ? kPage : got;
      if (goes_) let_go(start);
    }
    return {};
  }

  // Whether it is given back.
  void may_go(const MappingRecord& m) {
    goes_ = needed_ != nullptr && m.length >= kLeastGiven;
    for (std::uint32_t i = 0; i < needed_count_; ++i) goes_ = goes_ && needed_[i] - m.start >= m.length;
    gone_ = m.start;
  }

  // Of the mapping, all below is written: a page that the program changes from now on need not be copied for this
  // process. Whole huge pages, since one that is cut is not free before its last part is.
  void let_go(std::uint64_t end) {
    end &= ~(kHugePage - 1);
    if (end <= gone_) return;
    raw::invoke(__NR_madvise, gone_, end - gone_, MADV_DONTNEED);
    gone_ = end;
  }

  // Reads as far as the memory goes. Behind the end of a file there is none: nothing to save either. Content that
  // cannot be read is refused.
  Status read(std::uint64_t from, std::uint8_t* to, std::uint64_t* bytes) {
    const long n = raw::invoke(__NR_pread64, source_, to, *bytes, from + bias_);
    if (source_ != memory_) {
      if (n < 0)
        return Status::of(Code::kIo, static_cast<int>(-n), "cannot read shared memory at %lx: errno %ld", from, -n);
      // The last page of a file may be short.
      const auto got = static_cast<std::uint64_t>(n);
      *bytes = (got + kPage - 1) & ~(kPage - 1);
      __builtin_memset(to + got, 0, *bytes - got);
      return {};
    }
    if (n == -EIO || n == -EFAULT || (n >= 0 && n < static_cast<long>(kPage))) {
      if (is_content_) return refuse_page(from, n < 0 ? static_cast<int>(-n) : EIO);
      *bytes = 0;
      return {};
    }
    if (n < 0)
      return Status::of(Code::kInternal, static_cast<int>(-n), "cannot read memory at %lx: errno %ld", from, -n);
    *bytes = static_cast<std::uint64_t>(n) & ~(kPage - 1);
    return {};
  }

  Status refuse_page(std::uint64_t address, int error) const {
    const MappingRecord& m = table_->mappings[mapping_];
    return Status::of(
        Code::kRefused, error,
        "the page of memory at %lx cannot be read (errno %d; %lx-%lx, %.100s); it is broken (poisoned), or "
        "its file was cut, or the kernel forbids reading protected memory (boot with "
        "proc_mem.force_override=always)",
        address, error, m.start, m.start + m.length,
        m.path_bytes > 0 ? table_->strings + m.path_offset : "anonymous memory");
  }

  // Drops pages of zeros, and pages that the base has, from what is at `from`, and notes the rest. What is not in
  // place is copied there.
  Status keep(std::uint64_t address, const std::uint8_t* from, std::uint64_t count) {
    std::uint8_t* place = place_of(pages_);
    for (std::uint64_t i = 0; i < count; ++i, from += kPage, address += kPage) {
      if (is_compared_in_place()) expect_page(from);
      if (!keep_zeros_ && is_zero_page(from)) continue;
      PageHash hash{};
      if (hashed_) {
        hash_page(writer_->has_avx2(), from, &hash.low);
        if (borrow(address, hash)) continue;
      }
      if (!extend_run(address)) {
        // Out of runs: write what is there and begin again with this page.
        SHADOWIB_TRY(flush());
        place = place_of(0);
        if (!is_compared_in_place()) {  // it lies in the buffer that is written now
          __builtin_memmove(place, from, (count - i) * kPage);
          from = place;
        }
        extend_run(address);
      }
      if (place != from) {
        copy_pages(place, from, kPage);
        // A device may write to the page meanwhile, for a guest: the hash is that of the copy.
        if (is_compared_in_place()) hash_page(writer_->has_avx2(), place, &hash.low);
      }
      if (hashed_) put_hash(hash);
      place += kPage;
      ++pages_;
    }
    return pages_ == most_pages() ? flush() : Status{};
  }

  // Of the next page of the record.
  void put_hash(const PageHash& hash) {
    auto* hashes = reinterpret_cast<PageHash*>(writer_->page_buffer() + kPage);
    if (pages_ == 0) __builtin_memset(static_cast<void*>(hashes), 0, kPage);
    hashes[pages_] = hash;
  }

  // True: the base has the page, and the image will tell where. There is room for that (copy()).
  bool borrow(std::uint64_t address, const PageHash& hash) {
    std::uint32_t pack = 0, page = 0;
    const std::uint64_t space = (flags_ & kPagesShared) != 0 ? std::uint64_t{mapping_} + 1 : 0;
    if (base_ == nullptr || !base_->find(space, address, hash, &pack, &page)) return false;
    BorrowedRun& last = borrowed_run_;
    if (last.page_count != 0 && borrowed_last_ == mapping_) {  // a run is of one mapping
      const std::uint64_t end = last.address_and_pack + std::uint64_t{last.page_count} * kPage;
      if (end == (address | pack) && last.first_page + last.page_count == page && last.page_count != ~0u) {
        ++last.page_count;
        return true;
      }
    }
    if (last.page_count == 0) borrowed_mapping_ = mapping_;
    put_borrowed_run();
    borrowed_last_ = mapping_;
    last = BorrowedRun{address | pack, page, 1};
    return true;
  }

  // There is room for it (copy()).
  void put_borrowed_run() {
    if (borrowed_run_.page_count != 0)
      borrowed_bytes_ += borrowed_coder_.put(borrowed_run_, borrowed_ + borrowed_bytes_);
    borrowed_run_ = {};
  }

  bool extend_run(std::uint64_t address) {
    if (run_count_ > 0 && last_mapping_ == mapping_ &&
        runs_[run_count_ - 1].address + runs_[run_count_ - 1].length == address) {
      runs_[run_count_ - 1].length += kPage;
      return true;
    }
    if (run_count_ == kRunsPerRecord) return false;
    if (run_count_ == 0) first_mapping_ = mapping_;
    last_mapping_ = mapping_;
    runs_[run_count_++] = PageRun{address, kPage};
    return true;
  }

  Status flush() {
    if (pages_ == 0) return {};
    put_runs(first_mapping_, runs_, run_count_, pages_);
    const std::uint64_t pages = pages_;
    pages_ = 0;
    run_count_ = 0;
    return writer_->pages_record(flags_ | (hashed_ ? kPagesHashed : 0), pages);
  }

  // What is borrowed as well. The buffer of pages is used for it.
  Status flush_all() {
    SHADOWIB_TRY(flush());
    put_borrowed_run();
    if (borrowed_bytes_ == 0) return {};
    const BorrowedHeader header{flags_, borrowed_mapping_};
    const std::uint64_t bytes = borrowed_bytes_;
    borrowed_bytes_ = 0;
    borrowed_coder_ = {};
    return writer_->record(RecordType::kBorrowed, &header, sizeof(header), borrowed_, bytes);
  }

  void* work_;
  ImageWriter* writer_;
  std::uint8_t* borrowed_;  // kMostShortRunBytes, for runs
  BaseIndex* base_ = nullptr;
  std::uint64_t borrowed_bytes_ = 0;
  BorrowedRun borrowed_run_{};  // the last one, which may grow yet; no pages: none
  BorrowedRunCoder borrowed_coder_;
  std::uint32_t borrowed_mapping_ = 0, borrowed_last_ = 0;  // of the first run, and of the last
  bool hashed_;
  const std::uint64_t* needed_ = nullptr;  // nullptr: nothing is given back
  std::uint32_t needed_count_ = 0;
  bool goes_ = false;
  std::uint64_t gone_ = 0;  // in the mapping, below
  const MappingTable* table_ = nullptr;
  PageScanner scanner_;
  long memory_ = -1, source_ = -1;  // what is read from
  std::uint64_t bias_ = 0;          // its addresses are larger than the record's by that
  int swap_ = -1;
  bool direct_ = false, keep_zeros_ = false, is_content_ = false;
  std::uint32_t mapping_ = 0, first_mapping_ = 0, last_mapping_ = 0;  // of now, and of the runs
  std::uint32_t flags_ = 0, run_count_ = 0, guard_count_ = 0, guard_mapping_ = 0;
  std::uint64_t pages_ = 0;
  PageRun runs_[kRunsPerRecord], guards_[kRunsPerRecord];
};

PageWriter* make_page_writer(Scratch* scratch, ImageWriter* writer, bool hashed) {
  void* place = scratch->take(sizeof(PageWriter), alignof(PageWriter));
  void* work = scratch->take(kScanBytes, kPage);
  void* borrowed = hashed ? scratch->take(kMostShortRunBytes) : nullptr;
  if (place == nullptr || work == nullptr || (hashed && borrowed == nullptr)) return nullptr;
  return new (place) PageWriter(work, writer, static_cast<std::uint8_t*>(borrowed));
}

void leave_out(PageWriter* pages, BaseIndex* base) { pages->set_base(base); }

void give_back(PageWriter* pages, const std::uint64_t* needed, std::uint32_t count) {
  pages->give_back(needed, count);
}

Status write_pages(PageWriter* pages, const MappingTable& table, const SharedList& shared, PagePart part) {
  Status status = pages->start();
  if (status.ok()) status = pages->all(table, part);
  if (part != PagePart::kCopied)
    for (std::uint32_t i = 0; i < shared.count && status.ok(); ++i) status = pages->segment(shared.list[i], i);
  pages->~PageWriter();
  return status;
}

}  // namespace shadowib
