#include "hooks/imager/restore/frame.h"

#include <lz4.h>
#include <zstd.h>

#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace shadowib {

FrameReader::FrameReader() = default;
FrameReader::~FrameReader() = default;

void FrameReader::End::operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }

const char* FrameReader::unpack(const Frame& frame, const std::uint8_t* content, std::vector<std::uint8_t>* pages) {
  if (XXH3_64bits(content, frame.file_bytes()) != frame.xxh3) return "checksum of compressed pages";
  const std::uint64_t bytes = frame.page_count * kPage;
  pages->resize(bytes);
  bool whole = false;
  if (frame.codec == kPagesLz4) {
    whole = LZ4_decompress_safe(reinterpret_cast<const char*>(content), reinterpret_cast<char*>(pages->data()),
                                static_cast<int>(frame.bytes), static_cast<int>(bytes)) == static_cast<int>(bytes);
  } else {
    if (zstd_ == nullptr) zstd_.reset(ZSTD_createDCtx());
    if (zstd_ == nullptr) throw std::bad_alloc();  // as vectors do: the image is not damaged
    whole = ZSTD_decompressDCtx(zstd_.get(), pages->data(), bytes, content, frame.bytes) == bytes;
  }
  return whole ? nullptr : "its pages cannot be decompressed";
}

}  // namespace shadowib
