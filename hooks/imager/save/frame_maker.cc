// Built apart, and linked with the libraries' objects to one.
#include "hooks/imager/save/frame_maker.h"

#define ZSTD_STATIC_LINKING_ONLY
#include <lz4.h>
#include <zstd.h>

using shadowib::Compression;

namespace {

constexpr int kZstdLevel = 1, kLz4Acceleration = 1;

}  // namespace

// In place of the heap, which the libraries name and do not use here: what asks for memory gets none.
extern "C" void* shadowib_no_malloc(std::size_t) { return nullptr; }
extern "C" void* shadowib_no_calloc(std::size_t, std::size_t) { return nullptr; }
extern "C" void shadowib_no_free(void*) {}
// In place of functions that a program could offer to its own Zstandard, and to this one by that.
extern "C" unsigned long long shadowib_no_trace_begin(const void*) { return 0; }
extern "C" void shadowib_no_trace_end(unsigned long long, const void*) {}

extern "C" std::size_t shadowib_frame_work_bytes(Compression compression) {
  return compression == Compression::kZstd ? ZSTD_estimateCCtxSize(kZstdLevel)
                                           : static_cast<std::size_t>(LZ4_sizeofState());
}

extern "C" void* shadowib_start_frames(Compression compression, void* work, std::size_t bytes) {
  if (compression == Compression::kZstd) return ZSTD_initStaticCCtx(work, bytes);
  return bytes < static_cast<std::size_t>(LZ4_sizeofState()) ? nullptr : work;
}

extern "C" std::size_t shadowib_make_frame(Compression compression, void* state, const void* from, std::size_t bytes,
                                           void* to, std::size_t room) {
  if (compression == Compression::kLz4) {
    const int n = LZ4_compress_fast_extState(state, static_cast<const char*>(from), static_cast<char*>(to),
                                             static_cast<int>(bytes), static_cast<int>(room), kLz4Acceleration);
    return n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  const std::size_t n = ZSTD_compressCCtx(static_cast<ZSTD_CCtx*>(state), to, room, from, bytes, kZstdLevel);
  return ZSTD_isError(n) != 0 ? 0 : n;
}
