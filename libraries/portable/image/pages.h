// The records of a portable image: pages of 4 KiB, each with its number, the image's id and an XXH3 of the whole
// page. Their payloads in a row are a stream of bytes. docs/internals/portable-images.md has the fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace shadowib::portable {

constexpr std::size_t kPageSize = 4096;
constexpr std::size_t kPageHeader = 40;
constexpr std::size_t kPagePayload = kPageSize - kPageHeader;

// Writes pages to a descriptor that the caller owns. Throws Refused if it cannot.
class PageWriter {
 public:
  PageWriter(int fd, std::uint64_t id);
  void add(const void* bytes, std::size_t count);
  void finish();  // call once, last

 private:
  void flush(bool last);
  void write_out();
  int fd_;
  std::uint64_t id_, number_ = 0;
  std::size_t used_ = 0, ready_ = 0;  // payload in the page at hand; pages before it
  std::vector<unsigned char> pages_;
};

// The stream of an image, page by page. Checks every byte. Throws Refused if one is not right.
class PageReader {
 public:
  explicit PageReader(std::size_t size);  // of the file
  void add(const unsigned char* page);    // all of them, in their order
  std::vector<unsigned char> take() { return std::move(stream_); }

 private:
  std::size_t pages_, number_ = 0;  // number_: of the next one
  std::uint64_t id_ = 0;
  std::vector<unsigned char> stream_;
};

// Reads a file and unpacks it, with no second copy of it in memory.
std::vector<unsigned char> read_pages(const std::string& path);

void put_le(unsigned char* at, std::uint64_t value, unsigned bytes);

}  // namespace shadowib::portable
