#include "hooks/imager/save/direct_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include "hooks/raw/x86_64/raw_syscall.h"
#include "hooks/threads/thread_judge.h"

namespace shadowib {
namespace {

constexpr std::uint64_t kWritebackBytes = 8 << 20;
constexpr std::uint64_t kReservedBytes = 64 << 20;  // at a time

}  // namespace

bool DirectWriter::start(Scratch* scratch, int fd) {
  fd_ = fd;
  buffers_ = static_cast<std::uint8_t*>(scratch->take(kBuffersBytes, kHugePage));
  if (buffers_ == nullptr) return false;
  begin_direct();
  return true;
}

void DirectWriter::move_to(int fd) {
  fd_ = fd;
  direct_ = reserves_ = false;
  begin_direct();
}

// Under a filter no call is tried that it need not know.
void DirectWriter::begin_direct() {
  if (place_has_filter()) return;
  struct statfs system {};
  if (raw::failed(raw::invoke(__NR_fstatfs, fd_, &system)) || system.f_type == TMPFS_MAGIC) return;
  const long flags = raw::invoke(__NR_fcntl, fd_, F_GETFL, 0);
  if (raw::failed(flags) || raw::failed(raw::invoke(__NR_fcntl, fd_, F_SETFL, flags | O_DIRECT))) return;
  direct_ = true;
  // A reservation beyond the program's limit would send it a signal.
  std::uint64_t limit[2] = {};
  reserves_ = !raw::failed(raw::invoke(__NR_prlimit64, 0, RLIMIT_FSIZE, nullptr, limit)) && limit[0] == RLIM_INFINITY;
}

// Writes within the file's length and its blocks do not wait for each other.
void DirectWriter::reserve(std::uint64_t end) {
  if (!reserves_ || end <= reserved_) return;
  // Where it fails there is no room, perhaps for less than that: the writes tell. The file may be longer even so.
  if (raw::failed(raw::invoke(__NR_fallocate, fd_, 0, reserved_, kReservedBytes))) reserves_ = false;
  reserved_ += kReservedBytes;
}

int DirectWriter::write_now(const std::uint8_t* data, std::uint64_t bytes, std::uint64_t offset) {
  while (bytes > 0) {
    const long n = raw::invoke(__NR_pwrite64, fd_, data, bytes, offset);
    if (n == -EINTR) continue;
    if (n == -EINVAL && direct_) {  // the file system wants another alignment
      const long flags = raw::invoke(__NR_fcntl, fd_, F_GETFL, 0);
      raw::invoke(__NR_fcntl, fd_, F_SETFL, flags & ~O_DIRECT);
      direct_ = false;
      continue;
    }
    if (n <= 0) return n == 0 ? EIO : static_cast<int>(-n);
    data += n;
    offset += static_cast<std::uint64_t>(n);
    bytes -= static_cast<std::uint64_t>(n);
  }
  return 0;
}

int DirectWriter::write(std::uint64_t bytes) {
  if (error_ != 0) return error_;
  reserve(offset_ + bytes);
  const std::uint64_t at = offset_;
  offset_ += bytes;
  if (queued_ && direct_) {
    writes_[current_] = {at, bytes};
    if (submit(bytes)) {
      ++busy_;
      while (error_ == 0 && writes_[current_].bytes != 0) {
        for (current_ = 0; current_ < kBuffers && writes_[current_].bytes != 0;) ++current_;
        if (current_ < kBuffers) break;
        current_ = 0;
        error_ = await(1);
      }
      return error_;
    }
    writes_[current_] = {};
  }
  error_ = write_now(buffer(), bytes, at);
  if (!direct_ && offset_ - started_ >= kWritebackBytes) {
    // Keeps the disk busy while the rest is copied; the final sync then finds little left.
    raw::invoke(__NR_sync_file_range, fd_, started_, offset_ - started_, SYNC_FILE_RANGE_WRITE);
    started_ = offset_;
  }
  return error_;
}

void DirectWriter::begin_queue() {
  queued_ = direct_ && !raw::failed(raw::invoke(__NR_io_setup, kBuffers, &queue_));
  if (!queued_) return;
  // A buffer of small pages is hundreds of pieces to the disk's driver: a third more time. In a saver they are pages
  // of the program's besides, so new ones are taken. Without huge pages all goes on by small ones.
  raw::invoke(__NR_madvise, buffers_, kBuffersBytes, MADV_DONTNEED);
  raw::invoke(__NR_madvise, buffers_, kBuffersBytes, MADV_HUGEPAGE);
}

bool DirectWriter::submit(std::uint64_t bytes) {
  iocb request{};
  request.aio_data = current_;
  request.aio_lio_opcode = IOCB_CMD_PWRITE;
  request.aio_fildes = static_cast<std::uint32_t>(fd_);
  request.aio_buf = reinterpret_cast<std::uint64_t>(buffer());
  request.aio_nbytes = bytes;
  request.aio_offset = static_cast<std::int64_t>(writes_[current_].offset);
  iocb* list = &request;
  return raw::invoke(__NR_io_submit, queue_, 1, &list) == 1;
}

// Takes the results of at least so many writes. What one has left undone is written now.
int DirectWriter::await(unsigned at_least) {
  io_event events[kBuffers];
  const long n = raw::invoke(__NR_io_getevents, queue_, at_least, kBuffers, events, nullptr);
  if (n == -EINTR) return 0;
  if (raw::failed(n)) return static_cast<int>(-n);
  int error = 0;
  for (long i = 0; i < n; ++i) {
    const auto which = static_cast<unsigned>(events[i].data);
    const Write done = writes_[which];
    writes_[which] = {};
    --busy_;
    const std::int64_t result = events[i].res;
    const std::uint64_t written = result > 0 ? static_cast<std::uint64_t>(result) : 0;
    if (result < 0 && result != -EINVAL && result != -EAGAIN) error = static_cast<int>(-result);
    if (error == 0 && written < done.bytes)
      error = write_now(buffers_ + which * kBufferBytes + written, done.bytes - written, done.offset + written);
  }
  return error;
}

int DirectWriter::finish() {
  while (busy_ > 0 && error_ == 0) error_ = await(busy_);  // after an error the end of the queue waits
  if (error_ == 0 && reserved_ > offset_)
    if (const long cut = raw::invoke(__NR_ftruncate, fd_, offset_); raw::failed(cut)) error_ = static_cast<int>(-cut);
  return error_;
}

// Waits for all that is under way: the buffers are about to go.
void DirectWriter::end_queue() {
  if (queue_ != 0) raw::invoke(__NR_io_destroy, queue_);
  queue_ = 0;
  queued_ = false;
}

}  // namespace shadowib
