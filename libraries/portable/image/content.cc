#include "libraries/portable/image/content.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace shadowib::portable {

std::uint64_t content_hash(const void* bytes, std::size_t count, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, count, seed);
}

}  // namespace shadowib::portable
