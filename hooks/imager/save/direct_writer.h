// Writing buffers to a file past the page cache, several at once.
//
// Past it a write costs the processor a tenth, and no later sync has anything left to do. Several at once keep a disk
// busy while the next buffer is filled: by native asynchronous I/O, which, unlike io_uring, leaves no thread of the
// kernel's in the program. Where a file system, a limit or a filter refuses any of it, writes are plain ones.
#pragma once

#include "hooks/imager/image_format.h"
#include "hooks/imager/save/scratch.h"

namespace shadowib {

class DirectWriter {
 public:
  static constexpr std::uint64_t kBufferBytes = (kPagesPerRecord + 1) * kPage;

  // Takes its buffers from the scratch. False: there is no room. The descriptor stays the caller's.
  bool start(Scratch* scratch, int fd);
  ~DirectWriter() { end_queue(); }
  DirectWriter() = default;
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  // Goes on by another descriptor of the file, in another process.
  void move_to(int fd);

  // The buffer to fill. Another one after each write().
  std::uint8_t* buffer() { return buffers_ + current_ * kBufferBytes; }
  // Writes what the buffer begins with, whole pages, behind what was written before. 0, or an errno, which may be
  // that of an earlier write.
  int write(std::uint64_t bytes);
  // From now on several writes are under way. Not before the table of mappings is read: the queue is a mapping.
  void begin_queue();
  // Waits for all, and gives the file the length that was written. 0 or an errno.
  int finish();

  std::uint64_t bytes() const { return offset_; }

 private:
  static constexpr unsigned kBuffers = 8;
  // The last huge page as well.
  static constexpr std::uint64_t kBuffersBytes = (kBuffers * kBufferBytes + kHugePage - 1) & ~(kHugePage - 1);

  void begin_direct();
  void reserve(std::uint64_t end);
  int write_now(const std::uint8_t* data, std::uint64_t bytes, std::uint64_t offset);
  bool submit(std::uint64_t bytes);
  int await(unsigned at_least);
  void end_queue();

  int fd_ = -1, error_ = 0;
  std::uint8_t* buffers_ = nullptr;
  unsigned current_ = 0, busy_ = 0;
  struct Write {
    std::uint64_t offset, bytes;  // 0 bytes: the buffer is free
  } writes_[kBuffers] = {};
  std::uint64_t queue_ = 0;  // aio_context_t
  bool direct_ = false, reserves_ = false, queued_ = false;
  std::uint64_t offset_ = 0, reserved_ = 0, started_ = 0;
};

}  // namespace shadowib
