// The part of the restorer that places an image's content in memory and checks it there.
#include <linux/aio_abi.h>
#include <linux/mman.h>
#include <linux/uio.h>

#include "hooks/imager/content_hash.h"
#include "hooks/imager/restorer/steps.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

namespace shadowib::restorer {
namespace {

void install_guards(RestorerArgs* args, const RestorerBatch& batch) {
  for (std::uint32_t i = 0; i < batch.run_count; ++i)
    check(args, RestoreStep::kAdvise,
          raw::invoke(__NR_madvise, batch.runs[i].address, batch.runs[i].length, MADV_GUARD_INSTALL),
          batch.runs[i].address);
}

// Memory comes to be by one call for adjacent runs, in place of a fault for each page. A kernel before 5.14 refuses,
// and the read takes the faults.
void populate(const RestorerBatch& batch) {
  for (std::uint32_t i = 0; i < batch.run_count;) {
    const std::uint64_t start = batch.runs[i].address;
    std::uint64_t end = start;
    for (; i < batch.run_count && batch.runs[i].address == end; ++i) end += batch.runs[i].length;
    raw::invoke(__NR_madvise, start, end - start, MADV_POPULATE_WRITE);
  }
}

// One of the buffers for records being read.
struct ReadBuffer {
  std::uint8_t* page;  // gets the first page of the record, which has its header
  iovec* vectors;
};
ReadBuffer read_buffer(RestorerArgs* args, std::uint32_t which) {
  std::uint8_t* at = args->page_buffers + which * 2 * kPage;
  return {at, reinterpret_cast<iovec*>(at + kPage)};
}

// A page of the record's own goes to the buffer, and the others to their places.
std::uint32_t fill_vectors(const ReadBuffer& buffer, const RestorerBatch& batch) {
  std::uint32_t count = 0;
  if (batch.head_pages != 0) buffer.vectors[count++] = {buffer.page, kPage};
  for (std::uint32_t i = 0; i < batch.run_count; ++i)
    buffer.vectors[count++] = {reinterpret_cast<void*>(batch.runs[i].address), batch.runs[i].length};
  return count;
}

void read_in_place(RestorerArgs* args, const ReadBuffer& buffer, const RestorerBatch& batch) {
  iovec* vectors = buffer.vectors;
  const std::uint32_t count = fill_vectors(buffer, batch);
  std::uint64_t offset = batch.data_offset;
  for (std::uint32_t first = 0; first < count;) {
    const long n = batch.streamed != 0 ? raw::invoke(__NR_readv, args->stream_fd, vectors + first, count - first)
                                       : raw::invoke(__NR_preadv, args->files[batch.file].fd, vectors + first,
                                                     count - first, offset, 0);
    if (n == -4) continue;
    if (n <= 0)
      fail(args, RestoreStep::kRead, n < 0 ? n : -5, reinterpret_cast<std::uint64_t>(vectors[first].iov_base));
    offset += static_cast<std::uint64_t>(n);
    for (auto left = static_cast<std::uint64_t>(n); left > 0 && first < count;) {
      iovec& v = vectors[first];
      const std::uint64_t step = left < v.iov_len ? left : v.iov_len;
      v.iov_base = static_cast<std::uint8_t*>(v.iov_base) + step;
      v.iov_len -= step;
      left -= step;
      if (v.iov_len == 0) ++first;
    }
  }
}

// The hash of the pages' hashes.
void add_pages(bool avx2, ContentHash* hash, const RestorerBatch& batch) {
  for (std::uint32_t i = 0; i < batch.run_count; ++i)
    for (std::uint64_t at = 0; at < batch.runs[i].length; at += kPage) {
      std::uint64_t words[2];
      hash_page(avx2, reinterpret_cast<const void*>(batch.runs[i].address + at), words);
      add_to_hash(avx2, hash, words, sizeof(words));
    }
}

void check_content(RestorerArgs* args, const ReadBuffer& buffer, const RestorerBatch& batch) {
  if (args->checks_content == 0) return;
  constexpr std::uint64_t kHead = sizeof(RecordHeader);
  const bool avx2 = args->has_avx2 != 0;
  ContentHash hash;
  begin_hash(avx2, &hash);
  if (batch.by_pages != 0) {
    add_pages(avx2, &hash, batch);
    if (end_hash(avx2, &hash) != batch.xxh3) fail(args, RestoreStep::kDamaged, 0, batch.number);
    return;
  }
  add_to_hash(avx2, &hash, buffer.page + kHead, kPage - kHead);
  for (std::uint32_t i = 0; i < batch.run_count; ++i)
    add_to_hash(avx2, &hash, reinterpret_cast<const void*>(batch.runs[i].address), batch.runs[i].length);
  if (end_hash(avx2, &hash) != batch.xxh3) fail(args, RestoreStep::kDamaged, 0, batch.number);
}

void read_batch(RestorerArgs* args, const RestorerBatch& batch) {
  const ReadBuffer buffer = read_buffer(args, 0);
  populate(batch);
  read_in_place(args, buffer, batch);
  check_content(args, buffer, batch);
}

// Several records at once, past the page cache, by native asynchronous I/O.
class DirectReads {
 public:
  explicit DirectReads(RestorerArgs* args) : args_(args) {
    for (auto& batch : reading_) batch = nullptr;
  }

  // Once all mappings are there: the kernel's ring is one, and lies where there is room.
  bool start() {
    bool any = false;
    for (std::uint32_t i = 0; i < args_->file_count; ++i) any = any || args_->files[i].direct_fd >= 0;
    return any && !raw::failed(raw::invoke(__NR_io_setup, kReadsAtOnce, &context_));
  }

  void read(const RestorerBatch& batch) {
    populate(batch);
    std::uint32_t free = 0;
    while (free < kReadsAtOnce && reading_[free] != nullptr) ++free;
    if (free == kReadsAtOnce) free = await();
    const ReadBuffer buffer = read_buffer(args_, free);
    iocb request{};
    request.aio_data = free;
    request.aio_lio_opcode = IOCB_CMD_PREADV;
    request.aio_fildes = static_cast<std::uint32_t>(args_->files[batch.file].direct_fd);
    request.aio_nbytes = fill_vectors(buffer, batch);
    request.aio_buf = reinterpret_cast<std::uint64_t>(buffer.vectors);
    request.aio_offset = static_cast<std::int64_t>(batch.data_offset);
    iocb* list = &request;
    reading_[free] = &batch;
    if (raw::invoke(__NR_io_submit, context_, 1, &list) != 1) take(free, -1);
  }

  void finish() {
    for (const auto& batch : reading_)
      while (batch != nullptr) await();
    raw::invoke(__NR_io_destroy, context_);
  }

 private:
  // Takes the result of one read, and returns its buffer.
  std::uint32_t await() {
    io_event event{};
    long n;
    do n = raw::invoke(__NR_io_getevents, context_, 1, 1, &event, nullptr);
    while (n == -4);
    if (n != 1) fail(args_, RestoreStep::kRead, n, 0);
    take(static_cast<std::uint32_t>(event.data), event.res);
    return static_cast<std::uint32_t>(event.data);
  }

  // A read that got less than all is done again through the cache, and tells why if it cannot.
  void take(std::uint32_t which, long result) {
    const RestorerBatch& batch = *reading_[which];
    const ReadBuffer buffer = read_buffer(args_, which);
    if (result != static_cast<long>(batch.bytes)) read_in_place(args_, buffer, batch);
    check_content(args_, buffer, batch);
    reading_[which] = nullptr;
  }

  RestorerArgs* args_;
  std::uint64_t context_ = 0;  // aio_context_t
  const RestorerBatch* reading_[kReadsAtOnce];
};

}  // namespace

void read_content(RestorerArgs* args) {
  DirectReads direct(args);
  const bool directly = direct.start();
  for (std::uint32_t i = 0; i < args->batch_count; ++i) {
    const RestorerBatch& b = args->batches[i];
    if ((b.flags & kPagesGuard) != 0)
      install_guards(args, b);
    else if (directly && b.streamed == 0 && args->files[b.file].direct_fd >= 0)
      direct.read(b);
    else
      read_batch(args, b);
  }
  if (directly) direct.finish();
}

}  // namespace shadowib::restorer
