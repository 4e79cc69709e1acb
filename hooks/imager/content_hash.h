// XXH3-64 of an image's content: without libc, in two builds of which the processor takes one.
#pragma once

#include <cstdint>

namespace shadowib {

struct alignas(64) ContentHash {
  std::uint8_t state[640];
};

// The functions of one build, by their places in the restorer.
#define SHADOWIB_CONTENT_HASH(build)                                                        \
  void content_hash_begin_##build(ContentHash* hash);                                       \
  void content_hash_add_##build(ContentHash* hash, const void* bytes, std::uint64_t count); \
  std::uint64_t content_hash_end_##build(const ContentHash* hash);                          \
  void content_hash_end_128_##build(const ContentHash* hash, std::uint8_t* canonical);      \
  void content_hash_page_##build(const void* page, std::uint64_t* low_high);
// Hidden, so that the restorer finds them by their distance.
#pragma GCC visibility push(hidden)
extern "C" {
SHADOWIB_CONTENT_HASH(plain)
SHADOWIB_CONTENT_HASH(avx2)
}
#pragma GCC visibility pop
#undef SHADOWIB_CONTENT_HASH

// The caller tells whether the processor takes the build for AVX2.
inline void begin_hash(bool avx2, ContentHash* hash) {
  avx2 ? content_hash_begin_avx2(hash) : content_hash_begin_plain(hash);
}
inline void add_to_hash(bool avx2, ContentHash* hash, const void* bytes, std::uint64_t count) {
  avx2 ? content_hash_add_avx2(hash, bytes, count) : content_hash_add_plain(hash, bytes, count);
}
// XXH3-128 of a page at once: two words, the low one first.
inline void hash_page(bool avx2, const void* page, std::uint64_t* low_high) {
  avx2 ? content_hash_page_avx2(page, low_high) : content_hash_page_plain(page, low_high);
}
// XXH3-128 of the same, 16 bytes.
inline void end_hash_128(bool avx2, const ContentHash* hash, std::uint8_t* canonical) {
  avx2 ? content_hash_end_128_avx2(hash, canonical) : content_hash_end_128_plain(hash, canonical);
}
inline std::uint64_t end_hash(bool avx2, const ContentHash* hash) {
  return avx2 ? content_hash_end_avx2(hash) : content_hash_end_plain(hash);
}

}  // namespace shadowib
