// XXH3-64 of an image's content, in the restorer: without libc, in two builds of which the processor takes one.
#pragma once

#include <cstdint>

namespace shadowib {

struct alignas(64) ContentHash {
  std::uint8_t state[640];
};

// The three functions of one build, by their places in the restorer.
#define SHADOWIB_CONTENT_HASH(build)                                                        \
  void content_hash_begin_##build(ContentHash* hash);                                       \
  void content_hash_add_##build(ContentHash* hash, const void* bytes, std::uint64_t count); \
  std::uint64_t content_hash_end_##build(const ContentHash* hash);
// Hidden, so that the restorer finds them by their distance.
#pragma GCC visibility push(hidden)
extern "C" {
SHADOWIB_CONTENT_HASH(plain)
SHADOWIB_CONTENT_HASH(avx2)
}
#pragma GCC visibility pop
#undef SHADOWIB_CONTENT_HASH

}  // namespace shadowib
