#include "hooks/imager/save/image_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "hooks/imager/save/frame_maker.h"
#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/fault.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace shadowib {
namespace {

constexpr std::uint64_t kBufferBytes = DirectWriter::kBufferBytes;

Status io_error(int error, const char* what, const char* name) {
  return Status::of(Code::kIo, error, "%s %s: %s", what, name,
                    error == ENOSPC   ? "no space left on device; free space or choose another --dir"
                    : error == EDQUOT ? "disk quota exceeded"
                    : error == EFBIG  ? "file too large (see ulimit -f)"
                    : error == EIO    ? "input/output error"
                                      : "the file system refused");
}

constexpr int kMonotonic = 1, kThreadCpu = 3;  // CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID

std::int64_t now_ns(int clock = kMonotonic) {
  struct {
    std::int64_t seconds, nanoseconds;
  } now{};
  raw::invoke(__NR_clock_gettime, clock, &now);
  return now.seconds * 1'000'000'000 + now.nanoseconds;
}

}  // namespace

Status ImageWriter::start(Scratch* scratch, int fd, const char* name, std::int64_t deadline_ns) {
  deadline_ns_ = deadline_ns;
  began_ns_ = now_ns();
  cpu_began_ns_ = now_ns(kThreadCpu);
  fd_ = fd;
  name_ = name;
  file_hash_ = static_cast<ContentHash*>(scratch->take(sizeof(ContentHash), alignof(ContentHash)));
  record_hash_ = static_cast<ContentHash*>(scratch->take(sizeof(ContentHash), alignof(ContentHash)));
  headers_hash_ = scratch->take(sizeof(XXH3_state_t), 64);
  avx2_ = __builtin_cpu_supports("avx2") != 0;
  if (!file_.start(scratch, fd) || file_hash_ == nullptr || headers_hash_ == nullptr || record_hash_ == nullptr)
    return Status(Code::kInternal, ENOMEM, "no scratch memory for the image writer");
  begin_hash(avx2_, file_hash_);
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(headers_hash_));
  return {};
}

Status ImageWriter::compress(Scratch* scratch, Compression compression) {
  if (compression == Compression::kNone) return {};
  const std::size_t bytes = shadowib_frame_work_bytes(compression);
  void* work = scratch->take(bytes);
  frame_ = static_cast<std::uint8_t*>(scratch->take(kBufferBytes, kPage));
  if (work != nullptr) frames_ = shadowib_start_frames(compression, work, bytes);
  if (frames_ == nullptr || frame_ == nullptr)
    return Status(Code::kInternal, ENOMEM, "no scratch memory to compress pages in");
  compression_ = compression;
  return {};
}

void ImageWriter::move_to(int fd) {
  fd_ = fd;
  may_be_removed_ = true;
  cpu_began_ns_ = 0;  // a saver is a process of its own
  file_.move_to(fd);
}

bool ImageWriter::is_removed() const {
  struct stat file {};
  return may_be_removed_ && raw::invoke(__NR_fstat, fd_, &file) == 0 && file.st_nlink == 0;
}

// Says what took the time: the file system, or, where neither is much, a machine with no processor to spare.
Status ImageWriter::too_late(std::int64_t now) const {
  constexpr std::int64_t kMillisecond = 1'000'000;
  return Status::of(
      Code::kTimeout, 0,
      "image %s is not written within the checkpoint's time-out: %llu KiB in %lld ms, of which %lld ms in "
      "the file system, and %lld ms on a processor",
      name_, static_cast<unsigned long long>(file_.bytes() >> 10),
      static_cast<long long>((now - began_ns_) / kMillisecond),
      static_cast<long long>(in_file_system_ns_ / kMillisecond),
      static_cast<long long>((now_ns(kThreadCpu) - cpu_began_ns_) / kMillisecond));
}

// Of the current buffer.
Status ImageWriter::write_out(std::uint64_t bytes) {
  add_to_hash(avx2_, file_hash_, file_.buffer(), bytes);
  const std::int64_t before = now_ns();
  if (deadline_ns_ != 0 && before > deadline_ns_) return too_late(before);
  if (is_removed()) return Status::of(Code::kAborted, 0, "image %s was removed while it was written", name_);
  const int error = fault_no_space() ? ENOSPC : file_.write(bytes);
  in_file_system_ns_ += now_ns() - before;
  return error == 0 ? Status{} : io_error(error, "cannot write image", name_);
}

Status ImageWriter::header(const ImageHeader& header) {
  std::uint8_t* buffer = file_.buffer();
  __builtin_memset(buffer, 0, kPage);
  auto* copy = reinterpret_cast<ImageHeader*>(buffer);
  *copy = header;
  copy->xxh3 = XXH3_64bits(copy, offsetof(ImageHeader, xxh3));
  XXH3_128bits_update(static_cast<XXH3_state_t*>(headers_hash_), buffer, kPage);
  return write_out(kPage);
}

// Writes the record header at the head of the buffer, which must not be written out yet.
void ImageWriter::emit(RecordType type, std::uint32_t flags, std::uint64_t length, std::uint64_t payload_hash) {
  auto* head = reinterpret_cast<RecordHeader*>(file_.buffer());
  *head = RecordHeader{static_cast<std::uint32_t>(type), flags, length, payload_hash, 0};
  head->header_xxh3 = XXH3_64bits_withSeed(head, offsetof(RecordHeader, header_xxh3), file_.bytes());
  XXH3_128bits_update(static_cast<XXH3_state_t*>(headers_hash_), head, sizeof(*head));
  ++record_count_;
}

Status ImageWriter::record(RecordType type, const void* first, std::uint64_t first_bytes, const void* second,
                           std::uint64_t second_bytes) {
  const std::uint64_t length = first_bytes + second_bytes;
  const std::uint64_t total = record_bytes(length);
  const auto* a = static_cast<const std::uint8_t*>(first);
  const auto* b = static_cast<const std::uint8_t*>(second);
  // Twice over the parts: once to hash, since the hash stands in front, and once to write. They do not change
  // meanwhile.
  begin_hash(avx2_, record_hash_);
  add_to_hash(avx2_, record_hash_, a, first_bytes);
  if (second_bytes != 0) add_to_hash(avx2_, record_hash_, b, second_bytes);
  __builtin_memset(file_.buffer(), 0, kPage);
  add_to_hash(avx2_, record_hash_, file_.buffer(), total - sizeof(RecordHeader) - length);
  emit(type, 0, length, end_hash(avx2_, record_hash_));
  std::uint64_t used = sizeof(RecordHeader);
  for (int part = 0; part < 2; ++part) {
    const std::uint8_t* from = part == 0 ? a : b;
    std::uint64_t left = part == 0 ? first_bytes : second_bytes;
    while (left > 0) {
      const std::uint64_t n = left < kBufferBytes - used ? left : kBufferBytes - used;
      __builtin_memcpy(file_.buffer() + used, from, n);
      used += n;
      from += n;
      left -= n;
      if (used == kBufferBytes) {
        SHADOWIB_TRY(write_out(used));
        used = 0;
      }
    }
  }
  if (used == 0) return {};
  const std::uint64_t rounded = (used + kPage - 1) & ~(kPage - 1);
  __builtin_memset(file_.buffer() + used, 0, rounded - used);
  return write_out(rounded);
}

// In place of the pages of the record in the buffer: one frame, which takes a page less at least. Its bytes; 0: the
// pages stay.
std::uint64_t ImageWriter::make_frame(std::uint64_t page_count) {
  if (frames_ == nullptr || page_count < 2) return 0;
  std::uint8_t* const pages = page_buffer() + 2 * kPage;
  const std::uint64_t bytes =
      shadowib_make_frame(compression_, frames_, pages, page_count * kPage, frame_, (page_count - 1) * kPage);
  if (bytes == 0) return 0;
  const std::uint64_t rounded = (bytes + kPage - 1) & ~(kPage - 1);
  __builtin_memcpy(pages, frame_, bytes);
  __builtin_memset(pages + bytes, 0, rounded - bytes);
  begin_hash(avx2_, record_hash_);
  add_to_hash(avx2_, record_hash_, pages, rounded);
  const FrameHash hash{end_hash(avx2_, record_hash_), {}};
  __builtin_memcpy(page_buffer() + kFrameHashOffset, &hash, sizeof(hash));
  return bytes;
}

Status ImageWriter::pages_record(std::uint32_t flags, std::uint64_t page_count) {
  const bool hashed = (flags & kPagesHashed) != 0;
  const std::uint64_t head = hashed ? 2 * kPage : kPage;
  const std::uint64_t frame = hashed ? make_frame(page_count) : 0;
  if (frame != 0) flags |= compression_ == Compression::kLz4 ? kPagesLz4 : kPagesZstd;
  const std::uint64_t length = head - sizeof(RecordHeader) + (frame != 0 ? frame : page_count * kPage);
  begin_hash(avx2_, record_hash_);
  add_to_hash(avx2_, record_hash_, page_buffer() + sizeof(RecordHeader),
              hashed ? head - sizeof(RecordHeader) : length);
  emit(RecordType::kPages, flags, length, end_hash(avx2_, record_hash_));
  page_count_ += page_count;
  return write_out(record_bytes(length));
}

Status ImageWriter::finish(std::uint64_t* bytes, std::uint8_t xxh3[16]) {
  EndRecord end{};
  end.record_count = record_count_ + 1;
  end.page_count = page_count_;
  end.file_bytes = file_.bytes() + record_bytes(sizeof(end));
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(static_cast<XXH3_state_t*>(headers_hash_)));
  __builtin_memcpy(end.xxh3, canonical.digest, 16);
  SHADOWIB_TRY(record(RecordType::kEnd, &end, sizeof(end)));
  end_hash_128(avx2_, file_hash_, xxh3);
  *bytes = file_.bytes();
  if (const int error = file_.finish(); error != 0) return io_error(error, "cannot write image", name_);
  const long synced = raw::invoke(__NR_fsync, fd_);
  if (synced < 0) return io_error(static_cast<int>(-synced), "cannot sync image", name_);
  return {};
}

}  // namespace shadowib
