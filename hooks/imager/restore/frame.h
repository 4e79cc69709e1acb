// Pages that an image has compressed.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hooks/imager/image_format.h"

struct ZSTD_DCtx_s;

namespace shadowib {

// Takes the place of the pages of one record.
struct Frame {
  std::uint32_t codec = 0;  // kPagesLz4 or kPagesZstd; 0: the pages are not compressed
  std::uint64_t bytes = 0, page_count = 0;
  std::uint64_t xxh3 = 0;  // of its pages in the file, as FrameHash has it

  std::uint64_t file_bytes() const { return (bytes + kPage - 1) & ~(kPage - 1); }
};

// Undoes frames. Input may be anything: nothing is read or written beyond what is named. One thread at a time.
class FrameReader {
 public:
  FrameReader();
  ~FrameReader();
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  // `content`: frame.file_bytes(), as they stand in the file. nullptr, or what is wrong with them.
  const char* unpack(const Frame& frame, const std::uint8_t* content, std::vector<std::uint8_t>* pages);

 private:
  struct End {
    void operator()(ZSTD_DCtx_s* context) const;
  };
  std::unique_ptr<ZSTD_DCtx_s, End> zstd_;
};

}  // namespace shadowib
