#include "hooks/imager/save/base_index.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "hooks/imager/borrowed_runs.h"
#include "hooks/imager/pack_name.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/thread_judge.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace shadowib {
namespace {

constexpr std::uint64_t kWorkBytes = 64 << 10;
constexpr std::uint64_t kFirstRuns = 1 << 12;
// Pages that a file may have: a record takes three pages at least, even if its pages are compressed.
constexpr std::uint64_t most_pages(std::uint64_t file_bytes) {
  return (file_bytes / (3 * kPage) + 1) * kHashedPagesPerRecord;
}
constexpr std::uint64_t kMostFileBytes = 1ull << 42;
static_assert(std::size(SaveResult{}.packs) >= kMostPacks);

Status unusable(const char* why, int error = 0) {
  if (error == 0) return Status::of(Code::kRefused, 0, "the image before it %s", why);
  return Status::of(Code::kRefused, error, "the image before it %s (errno %d)", why, error);
}

Status damaged() { return unusable("is damaged", 0); }

bool fetch(int fd, std::uint64_t at, void* to, std::uint64_t bytes) {
  auto* place = static_cast<std::uint8_t*>(to);
  while (bytes > 0) {
    const long n = raw::invoke(__NR_pread64, fd, place, bytes, at);
    if (n == -EINTR) continue;
    if (n <= 0) return false;
    place += n;
    at += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::uint64_t>(n);
  }
  return true;
}

}  // namespace

Status BaseIndex::open(const SaveRequest& request, int directory) {
  // A filter may end the process at a call that nobody has tried.
  if (place_has_filter()) return unusable("cannot be linked to under a seccomp filter");
  member_ = request.member;
  most_packs_ = std::clamp(request.most_packs, 2u, kMostPacks);
  directory_ = directory;
  const long base = raw::invoke(__NR_openat, AT_FDCWD, request.base_directory, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
  if (raw::failed(base)) return unusable("is gone", static_cast<int>(-base));
  const Status status = build(request, static_cast<int>(base), directory);
  raw::invoke(__NR_close, base);
  if (status.ok()) return {};
  unlink_packs();
  release();
  return status;
}

// The base's own pages become the first pack, and its packs the others, but for those that are left behind.
Status BaseIndex::build(const SaveRequest& request, int base, int directory) {
  File own, packs[kMostPacks];
  SHADOWIB_TRY(open_file(base, request.base_name, &own));
  own.room = most_pages(own.bytes);
  const std::uint64_t bytes = kWorkBytes + own.room * sizeof(PageHash) + 4 * kPage;
  Status status = memory_.map(bytes) ? Status() : unusable("needs too much memory", ENOMEM);
  if (status.ok()) {
    page_ = static_cast<std::uint8_t*>(memory_.take(kWorkBytes, kPage));
    own.hashes = static_cast<PageHash*>(memory_.take(own.room * sizeof(PageHash)));
    status = page_ != nullptr && own.hashes != nullptr ? walk(&own, true) : unusable("needs too much memory", ENOMEM);
  }
  raw::invoke(__NR_close, own.fd);
  SHADOWIB_TRY(status);
  listed_count_ = std::min(listed_count_, kMostPacks);
  std::uint32_t number_of[kMostPacks + 1];
  packs_[0] = own.entry;
  hashes_[0] = own.hashes;
  pack_count_ = own.entry.page_count != 0;
  choose_packs(number_of);
  if (own.entry.page_count != 0) SHADOWIB_TRY(link_pack(base, request.base_name, directory, own.entry));
  for (std::uint32_t i = own.entry.page_count != 0; i < pack_count_; ++i) {
    char name[kPackNameBytes];
    name_pack(member_, packs_[i].set_id, name);
    SHADOWIB_TRY(link_pack(base, name, directory, packs_[i]));
    SHADOWIB_TRY(open_file(directory, name, &packs[i]));
    File& file = packs[i];
    Scratch hashes;
    file.room = most_pages(file.bytes);
    status = hashes.map(file.room * sizeof(PageHash) + kPage) ? Status() : unusable("needs too much memory", ENOMEM);
    if (status.ok()) {
      memory_of_pack_[i] = hashes;
      file.hashes = static_cast<PageHash*>(hashes.take(file.room * sizeof(PageHash)));
      hashes_[i] = file.hashes;
      status = walk(&file, false);
    }
    raw::invoke(__NR_close, file.fd);
    SHADOWIB_TRY(status);
    if (file.bytes != packs_[i].file_bytes || file.entry.page_count != packs_[i].page_count ||
        __builtin_memcmp(file.entry.xxh3, packs_[i].xxh3, 16) != 0)
      return damaged();
  }
  std::uint64_t kept = 0;
  for (std::uint64_t i = 0; i < run_count_; ++i) {
    Run run = runs_[i];
    if (number_of[run.pack] == kMostPacks) continue;
    run.pack = number_of[run.pack];
    if (std::uint64_t{run.first_page} + run.page_count > packs_[run.pack].page_count) return damaged();
    runs_[kept++] = run;
  }
  run_count_ = kept;
  std::sort(runs_, runs_ + run_count_, [](const Run& a, const Run& b) {
    return a.space != b.space ? a.space < b.space : a.address < b.address;
  });
  for (std::uint32_t i = 0; i < pack_count_; ++i) packs_[i].used = 0;  // counted anew
  return {};
}

// Fills packs_ behind the base itself. number_of[0] is the base's number, number_of[1 + i] that of its pack i;
// kMostPacks: left behind.
void BaseIndex::choose_packs(std::uint32_t* number_of) {
  bool keeps[kMostPacks] = {};
  std::uint32_t count = pack_count_;
  for (std::uint32_t i = 0; i < listed_count_; ++i) {
    keeps[i] = listed_[i].used != 0 && listed_[i].used * 2 >= listed_[i].page_count;
    count += keeps[i];
  }
  for (const bool too_many = count > most_packs_; too_many && count > most_packs_ / 2; --count) {
    std::uint32_t least = kMostPacks;
    for (std::uint32_t i = 0; i < listed_count_; ++i)
      if (keeps[i] && (least == kMostPacks || listed_[i].used < listed_[least].used)) least = i;
    keeps[least] = false;
  }
  number_of[0] = 0;
  for (std::uint32_t i = 0; i < listed_count_; ++i) {
    number_of[1 + i] = keeps[i] ? pack_count_ : kMostPacks;
    if (keeps[i]) packs_[pack_count_++] = listed_[i];
  }
  for (std::uint32_t i = listed_count_; i < kMostPacks; ++i) number_of[1 + i] = kMostPacks;
}

Status BaseIndex::link_pack(int base, const char* from, int directory, const PackEntry& entry) {
  char name[kPackNameBytes];
  name_pack(member_, entry.set_id, name);
  const long result = raw::invoke(__NR_linkat, base, from, directory, name, 0);
  if (result == -EXDEV) return unusable("is on another file system", EXDEV);
  if (result == -EMLINK) return unusable("has as many links as a file may have", EMLINK);
  if (raw::failed(result)) return unusable("cannot be linked to", static_cast<int>(-result));
  ++linked_count_;
  return {};
}

void BaseIndex::unlink_packs() {
  char name[kPackNameBytes];
  for (std::uint32_t i = 0; i < linked_count_; ++i) {
    name_pack(member_, packs_[i].set_id, name);
    raw::invoke(__NR_unlinkat, directory_, name, 0);
  }
  linked_count_ = 0;
}

Status BaseIndex::open_file(int directory, const char* name, File* file) {
  const long fd = raw::invoke(__NR_openat, directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
  if (raw::failed(fd)) return unusable("cannot be opened", static_cast<int>(-fd));
  file->fd = static_cast<int>(fd);
  struct stat info {};
  if (raw::failed(raw::invoke(__NR_fstat, fd, &info)) || info.st_size <= 0 ||
      static_cast<std::uint64_t>(info.st_size) > kMostFileBytes) {
    raw::invoke(__NR_close, fd);
    return damaged();
  }
  file->bytes = static_cast<std::uint64_t>(info.st_size);
  return {};
}

// All records, by their first two pages; of the base also what tells where its pages lie.
Status BaseIndex::walk(File* file, bool is_base) {
  ImageHeader header;
  if (!fetch(file->fd, 0, page_, kPage)) return damaged();
  __builtin_memcpy(&header, page_, sizeof(header));
  if (__builtin_memcmp(header.magic, kImageMagic, sizeof(header.magic)) != 0 ||
      header.xxh3 != XXH3_64bits(&header, offsetof(ImageHeader, xxh3)))
    return damaged();
  if (header.version < kIncremental) return unusable("is not incremental");
  if (header.version > kImageVersion) return unusable("is of a newer shadowib");
  if (header.member != member_) return unusable("is of another member");
  file->has_short_runs = header.version >= kShortRuns;
  __builtin_memcpy(file->entry.set_id, header.set_id, sizeof(header.set_id));
  file->entry.file_bytes = file->bytes;
  auto* state = static_cast<XXH3_state_t*>(static_cast<void*>(page_ + 3 * kPage));
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, page_, kPage);
  for (std::uint64_t offset = kPage;;) {
    if (offset + kPage > file->bytes) return damaged();
    const std::uint64_t n = std::min(2 * kPage, file->bytes - offset);
    RecordHeader h;
    if (!fetch(file->fd, offset, page_, n)) return damaged();
    __builtin_memcpy(&h, page_, sizeof(h));
    if (h.header_xxh3 != XXH3_64bits_withSeed(&h, offsetof(RecordHeader, header_xxh3), offset) ||
        h.length > file->bytes || offset + record_bytes(h.length) > file->bytes)
      return damaged();
    const auto type = static_cast<RecordType>(h.type);
    if (type == RecordType::kPages) SHADOWIB_TRY(take_pages(h, file, is_base, page_));
    if (type == RecordType::kBorrowed && is_base) SHADOWIB_TRY(take_borrowed(h, *file, offset));
    if (type == RecordType::kPacks && is_base) SHADOWIB_TRY(take_packs(h, page_));
    if (type == RecordType::kEnd) {
      EndRecord end;
      __builtin_memcpy(&end, page_ + sizeof(h), sizeof(end));
      XXH128_canonical_t canonical;
      XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
      if (offset + record_bytes(h.length) != file->bytes || __builtin_memcmp(canonical.digest, end.xxh3, 16) != 0)
        return damaged();
      __builtin_memcpy(file->entry.xxh3, end.xxh3, 16);
      return {};
    }
    XXH3_128bits_update(state, &h, sizeof(h));
    offset += record_bytes(h.length);
  }
}

Status BaseIndex::take_pages(const RecordHeader& h, File* file, bool is_base, const std::uint8_t* head) {
  PagesHeader p;
  __builtin_memcpy(&p, head + sizeof(h), sizeof(p));
  if (p.page_count == 0) return {};
  std::uint64_t& have = file->entry.page_count;
  if ((h.flags & kPagesHashed) == 0 || p.page_count > kHashedPagesPerRecord || p.run_count > kRunsPerRecord ||
      have + p.page_count > file->room || h.payload_xxh3 != XXH3_64bits(head + sizeof(h), 2 * kPage - sizeof(h)))
    return damaged();
  __builtin_memcpy(file->hashes + have, head + kPage, p.page_count * sizeof(PageHash));
  std::uint64_t first = have;
  have += p.page_count;
  if (!is_base) return {};
  const std::uint64_t space = (h.flags & kPagesShared) != 0 ? std::uint64_t{p.mapping} + 1 : 0;
  for (std::uint32_t i = 0; i < p.run_count; ++i) {
    PageRun run;
    __builtin_memcpy(&run, head + sizeof(h) + sizeof(p) + i * sizeof(run), sizeof(run));
    const auto pages = static_cast<std::uint32_t>(run.length / kPage);
    SHADOWIB_TRY(add_run({space, run.address, static_cast<std::uint32_t>(first), pages, 0, 0}));
    first += pages;
  }
  return first == have ? Status() : damaged();
}

Status BaseIndex::take_borrowed(const RecordHeader& h, const File& file, std::uint64_t offset) {
  BorrowedHeader b;
  const std::uint64_t begin = offset + sizeof(h), total = record_bytes(h.length) - sizeof(h);
  if (h.length < sizeof(b) || (file.has_short_runs && h.length > sizeof(b) + kMostShortRunBytes)) return damaged();
  auto* state = static_cast<XXH3_state_t*>(static_cast<void*>(page_ + 4 * kPage));
  std::uint8_t* const chunk = page_ + 8 * kPage;
  constexpr std::uint64_t kChunk = 32 << 10;
  XXH3_64bits_reset(state);
  if (!fetch(file.fd, begin, &b, sizeof(b))) return damaged();
  XXH3_64bits_update(state, &b, sizeof(b));
  const std::uint64_t space = (b.flags & kPagesShared) != 0 ? std::uint64_t{b.mapping} + 1 : 0;
  BorrowedRunCoder coder;
  std::uint64_t kept = 0;  // of the chunk: the beginning of a run, whose rest comes with the next one
  for (std::uint64_t at = sizeof(b); at < total;) {
    const std::uint64_t n = std::min(kChunk - kept, total - at);
    if (!fetch(file.fd, begin + at, chunk + kept, n)) return damaged();
    XXH3_64bits_update(state, chunk + kept, n);
    const std::uint64_t whole = kept + (at >= h.length ? 0 : std::min(n, h.length - at));
    std::uint64_t i = 0;
    for (BorrowedRun run; i < whole;) {
      std::uint64_t taken = 0;
      if (file.has_short_runs)
        taken = coder.get(chunk + i, whole - i, &run);
      else if (whole - i >= sizeof(run))
        taken = sizeof(run);
      if (taken == 0) break;
      if (!file.has_short_runs) __builtin_memcpy(&run, chunk + i, sizeof(run));
      SHADOWIB_TRY(add_borrowed(space, run));
      i += taken;
    }
    kept = whole - i;
    if (kept >= BorrowedRunCoder::kMostBytes) return damaged();
    __builtin_memmove(chunk, chunk + i, kept);
    at += n;
  }
  return kept == 0 && XXH3_64bits_digest(state) == h.payload_xxh3 ? Status() : damaged();
}

Status BaseIndex::add_borrowed(std::uint64_t space, const BorrowedRun& run) {
  const auto pack = static_cast<std::uint32_t>(run.address_and_pack & kPackBits);
  if (pack >= kMostPacks) return damaged();
  return add_run({space, run.address_and_pack & ~kPackBits, run.first_page, run.page_count, pack + 1, 0});
}

Status BaseIndex::take_packs(const RecordHeader& h, const std::uint8_t* head) {
  if (record_bytes(h.length) != kPage || h.length % sizeof(PackEntry) != 0 ||
      h.length > kMostPacks * sizeof(PackEntry) || h.payload_xxh3 != XXH3_64bits(head + sizeof(h), kPage - sizeof(h)))
    return damaged();
  listed_count_ = static_cast<std::uint32_t>(h.length / sizeof(PackEntry));
  __builtin_memcpy(listed_, head + sizeof(h), h.length);
  return {};
}

Status BaseIndex::add_run(const Run& run) {
  if (run_count_ == run_room_) {
    const std::uint64_t room = std::max(2 * run_room_, kFirstRuns);
    Scratch larger;
    if (!larger.map(room * sizeof(Run) + kPage)) return unusable("needs too much memory", ENOMEM);
    auto* const runs = static_cast<Run*>(larger.take(room * sizeof(Run)));
    if (run_count_ != 0) __builtin_memcpy(static_cast<void*>(runs), runs_, run_count_ * sizeof(Run));
    memory_of_runs_.unmap();
    memory_of_runs_ = larger;
    runs_ = runs;
    run_room_ = room;
  }
  runs_[run_count_++] = run;
  return {};
}

bool BaseIndex::find(std::uint64_t space, std::uint64_t address, const PageHash& hash, std::uint32_t* pack,
                     std::uint32_t* page) {
  const auto has = [&](std::uint64_t i) {
    return i < run_count_ && runs_[i].space == space && runs_[i].address <= address &&
           address - runs_[i].address < std::uint64_t{runs_[i].page_count} * kPage;
  };
  if (!has(at_)) {
    if (has(at_ + 1)) {
      ++at_;
    } else {
      const Run* after = std::upper_bound(runs_, runs_ + run_count_, address, [space](std::uint64_t a, const Run& r) {
        return space != r.space ? space < r.space : a < r.address;
      });
      if (after == runs_) return false;
      at_ = static_cast<std::uint64_t>(after - runs_) - 1;
      if (!has(at_)) return false;
    }
  }
  const Run& run = runs_[at_];
  const auto number = run.first_page + static_cast<std::uint32_t>((address - run.address) / kPage);
  const PageHash& known = hashes_[run.pack][number];
  if (known.low != hash.low || known.high != hash.high) return false;
  ++packs_[run.pack].used;
  *pack = run.pack;
  *page = number;
  return true;
}

Status BaseIndex::close(SaveResult* result) {
  result->pack_count = 0;
  result->borrowed_bytes = 0;
  char name[kPackNameBytes];
  for (std::uint32_t i = 0; i < pack_count_; ++i) {
    const PackEntry& p = packs_[i];
    if (p.used != 0) {
      SaveResult::Pack& listed = result->packs[result->pack_count++];
      __builtin_memcpy(listed.set_id, p.set_id, sizeof(listed.set_id));
      listed.bytes = p.file_bytes;
      result->borrowed_bytes += p.used * kPage;
      continue;
    }
    name_pack(member_, p.set_id, name);
    const long gone = raw::invoke(__NR_unlinkat, directory_, name, 0);
    if (raw::failed(gone))
      return Status::of(Code::kIo, static_cast<int>(-gone), "cannot remove %s: errno %ld", name, -gone);
  }
  release();
  return {};
}

void BaseIndex::release() {
  memory_.unmap();
  memory_of_runs_.unmap();
  for (Scratch& hashes : memory_of_pack_) hashes.unmap();
}

}  // namespace shadowib
