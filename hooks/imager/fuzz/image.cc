// Fuzz target: the image reader.
//
// An input with right checksums would never come up by chance, so it is a list of records, and the file is made of
// it: header, each record with its length and checksums, an end record that fits. Byte 0 of a record is its type,
// byte 1 its flags, 2 and 3 the length of its content, of which records of the process and of pages are given what
// they lack. Behind the runs of pages the rest is a frame, if the record has one. An odd first byte of the input
// leaves a checksum wrong.
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hooks/imager/restore/image_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

using namespace shadowib;

namespace {

using Bytes = std::vector<std::uint8_t>;

template <typename T>
void put(Bytes* file, std::size_t at, const T& value) {
  memcpy(file->data() + at, &value, sizeof(value));
}

void add_record(Bytes* file, std::uint32_t type, std::uint32_t flags, const std::uint8_t* content,
                std::size_t bytes) {
  const std::size_t at = file->size(), total = record_bytes(bytes);
  file->resize(at + total);
  if (bytes != 0) memcpy(file->data() + at + sizeof(RecordHeader), content, bytes);
  RecordHeader header{type, flags, bytes, 0, 0};
  const bool hashed = type == static_cast<std::uint32_t>(RecordType::kPages) && (flags & kPagesHashed) != 0;
  if (hashed && total > 2 * kPage)
    put(file, at + kFrameHashOffset, FrameHash{XXH3_64bits(file->data() + at + 2 * kPage, total - 2 * kPage), {}});
  const std::size_t covered = hashed && total > 2 * kPage ? kHashedHeadBytes : total - sizeof(header);
  header.payload_xxh3 = XXH3_64bits(file->data() + at + sizeof(header), covered);
  header.header_xxh3 = XXH3_64bits_withSeed(&header, offsetof(RecordHeader, header_xxh3), at);
  put(file, at, header);
}

// As long as its header says, so that its runs are looked at.
void complete_pages(std::uint32_t flags, const PagesHeader& pages, Bytes* content) {
  const std::size_t runs = sizeof(pages) + std::min(pages.run_count, kRunsPerRecord) * sizeof(PageRun);
  if ((flags & kPagesCompressed) != 0) {
    const Bytes frame(content->begin() + static_cast<long>(std::min(runs, content->size())), content->end());
    content->resize(std::min(runs, content->size()));
    content->resize(kHashedHeadBytes);
    content->insert(content->end(), frame.begin(), frame.end());
  } else if (pages.page_count <= 8) {
    const std::size_t head = (flags & kPagesHashed) != 0 ? kHashedHeadBytes : kPage - sizeof(RecordHeader);
    content->resize(head + pages.page_count * kPage);
  }
}

Bytes make_image(const std::uint8_t* data, std::size_t size) {
  Bytes file(kPage);
  ImageHeader header{};
  memcpy(header.magic, kImageMagic, sizeof(header.magic));
  header.version = size % 2 != 0 ? kCompressed : kImageVersion;  // runs of both forms
  header.byte_order = kImageByteOrder;
  header.page_bytes = kPage;
  header.machine = EM_X86_64;
  header.xxh3 = XXH3_64bits(&header, offsetof(ImageHeader, xxh3));
  put(&file, 0, header);
  EndRecord end{};
  Bytes headers = file;  // of all records, behind the first page
  for (std::size_t at = 0; at + 4 <= size && file.size() < (4u << 20);) {
    const std::size_t wanted = data[at + 2] | data[at + 3] << 8;
    const std::size_t bytes = wanted < size - at - 4 ? wanted : size - at - 4;
    Bytes content(data + at + 4, data + at + 4 + bytes);
    if (data[at] == static_cast<std::uint8_t>(RecordType::kPages) && bytes >= sizeof(PagesHeader)) {
      PagesHeader pages;
      memcpy(&pages, content.data(), sizeof(pages));
      end.page_count += pages.page_count;
      complete_pages(data[at + 1], pages, &content);
    }
    // Seeds outlive versions of it.
    if (data[at] == static_cast<std::uint8_t>(RecordType::kProcess)) content.resize(sizeof(ProcessRecord));
    const std::size_t record = file.size();
    add_record(&file, data[at], data[at + 1], content.data(), content.size());
    headers.insert(headers.end(), file.begin() + static_cast<long>(record),
                   file.begin() + static_cast<long>(record + sizeof(RecordHeader)));
    ++end.record_count;
    at += 4 + bytes;
  }
  ++end.record_count;
  end.file_bytes = file.size() + record_bytes(sizeof(end));
  XXH128_canonical_t whole;
  XXH128_canonicalFromHash(&whole, XXH3_128bits(headers.data(), headers.size()));
  memcpy(end.xxh3, whole.digest, sizeof(end.xxh3));
  Bytes content(sizeof(end));
  put(&content, 0, end);
  add_record(&file, static_cast<std::uint32_t>(RecordType::kEnd), 0, content.data(), content.size());
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int fd = ::memfd_create("image", MFD_CLOEXEC);
  if (size < 1) return 0;
  Bytes file = make_image(data + 1, size - 1);
  if ((data[0] & 1) != 0) file[data[0] * std::size_t{131} % file.size()] ^= 1;
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, file.data(), file.size(), 0) != static_cast<ssize_t>(file.size()))
    abort();
  LoadedImage image;
  for (ReadDepth depth : {ReadDepth::kTables, ReadDepth::kEverything}) {
    Status status = load_image(fd, "image", depth, &image);
    if (status.ok() && (image.mappings.empty() || image.threads.empty())) abort();
  }
  return 0;
}
