#include "libraries/portable/image/pages.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "libraries/portable/image/content.h"
#include "libraries/portable/image/layout.h"
#include "libraries/portable/image/words.h"

namespace shadowib::portable {
namespace {

constexpr std::size_t kPagesAtOnce = 64;      // written
constexpr std::size_t kPagesReadAtOnce = 32;  // stay in a near cache
constexpr char kPageMagic[] = {'P', 'S', 'I', '1'};

std::uint64_t page_hash(const unsigned char* page) {
  return content_hash(page + kPageHeader, kPagePayload, content_hash(page, 32, 0));
}

std::string page_name(std::size_t number) { return "record " + std::to_string(number) + " of the image "; }

}  // namespace

void put_le(unsigned char* at, std::uint64_t value, unsigned bytes) {
  for (unsigned i = 0; i < bytes; i++) at[i] = static_cast<unsigned char>(value >> (8 * i));
}

PageWriter::PageWriter(int fd, std::uint64_t id) : fd_(fd), id_(id), pages_(kPagesAtOnce * kPageSize) {}

void PageWriter::add(const void* bytes, std::size_t count) {
  const auto* from = static_cast<const unsigned char*>(bytes);
  while (count > 0) {
    if (used_ == kPagePayload) flush(false);
    const std::size_t part = std::min(count, kPagePayload - used_);
    std::memcpy(pages_.data() + ready_ * kPageSize + kPageHeader + used_, from, part);
    used_ += part, from += part, count -= part;
  }
}

void PageWriter::finish() {
  flush(true);
  write_out();
}

void PageWriter::flush(bool last) {
  unsigned char* page = pages_.data() + ready_ * kPageSize;
  std::memset(page + kPageHeader + used_, 0, kPagePayload - used_);
  std::memset(page, 0, kPageHeader);
  std::memcpy(page, kPageMagic, 4);
  put_le(page + 4, last ? 1 : 0, 4);
  put_le(page + 8, number_++, 8);
  put_le(page + 16, used_, 4);
  put_le(page + 24, id_, 8);
  put_le(page + 32, page_hash(page), 8);
  used_ = 0;
  if (++ready_ == kPagesAtOnce) write_out();
}

void PageWriter::write_out() {
  const unsigned char* at = pages_.data();
  std::size_t left = ready_ * kPageSize;
  while (left > 0) {
    const ssize_t written = write(fd_, at, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw Refused{std::string("the image cannot be written: ") + std::strerror(errno)};
    at += written, left -= written;
  }
  ready_ = 0;
}

PageReader::PageReader(std::size_t size) : pages_(size / kPageSize) {
  if (size == 0 || size % kPageSize)
    throw Refused{"this is no whole image: it has " + std::to_string(size) + " bytes"};
  stream_.reserve(pages_ * kPagePayload);
}

void PageReader::add(const unsigned char* page) {
  if (std::memcmp(page, kPageMagic, 4) != 0) throw Refused{"this is no portable image"};
  if (get_le(page + 32, 8) != page_hash(page)) throw Refused{page_name(number_) + "is damaged"};
  const std::size_t used = get_le(page + 16, 4);
  const std::uint64_t id = get_le(page + 24, 8);
  const bool last = get_le(page + 4, 4) == 1;
  if (number_ == 0) id_ = id;
  if (get_le(page + 8, 8) != number_ || used > kPagePayload || (used != kPagePayload && !last) || id != id_)
    throw Refused{page_name(number_) + "is of another place"};
  if (last != (++number_ == pages_)) throw Refused{last ? "the image has a tail" : "the image has no end"};
  stream_.insert(stream_.end(), page + kPageHeader, page + kPageHeader + used);
}

std::vector<unsigned char> read_pages(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw Refused{std::string("it cannot be opened: ") + std::strerror(errno)};
  const std::unique_ptr<const int, void (*)(const int*)> closer(&fd, [](const int* it) { close(*it); });
  struct stat about = {};
  const std::size_t size = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) ? about.st_size : 0;
  PageReader reader(size);
  std::vector<unsigned char> some(std::min(size, kPagesReadAtOnce * kPageSize));
  std::size_t have = 0;  // of `some`
  for (std::size_t left = size; left > 0;) {
    const ssize_t got = read(fd, some.data() + have, std::min(left, some.size() - have));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw Refused{"it cannot be read to its end"};
    have += got, left -= got;
    if (have < some.size() && left > 0) continue;
    for (std::size_t at = 0; at < have; at += kPageSize) reader.add(some.data() + at);
    have = 0;
  }
  return reader.take();
}

}  // namespace shadowib::portable
