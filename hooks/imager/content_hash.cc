// Built twice: BUILD is plain or avx2. Static functions of the same name stay apart.
#include "hooks/imager/content_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define JOIN_NAMES(a, b) a##b
#define JOIN(a, b) JOIN_NAMES(a, b)

using namespace shadowib;

static_assert(sizeof(XXH3_state_t) <= sizeof(ContentHash) && alignof(XXH3_state_t) <= alignof(ContentHash));

extern "C" void JOIN(content_hash_begin_, BUILD)(ContentHash* hash) {
  XXH3_64bits_reset(reinterpret_cast<XXH3_state_t*>(hash->state));
}

extern "C" void JOIN(content_hash_add_, BUILD)(ContentHash* hash, const void* bytes, std::uint64_t count) {
  XXH3_64bits_update(reinterpret_cast<XXH3_state_t*>(hash->state), bytes, count);
}

extern "C" std::uint64_t JOIN(content_hash_end_, BUILD)(const ContentHash* hash) {
  return XXH3_64bits_digest(reinterpret_cast<const XXH3_state_t*>(hash->state));
}

extern "C" void JOIN(content_hash_end_128_, BUILD)(const ContentHash* hash, std::uint8_t* canonical) {
  XXH128_canonical_t digest;
  XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(reinterpret_cast<const XXH3_state_t*>(hash->state)));
  __builtin_memcpy(canonical, digest.digest, sizeof(digest.digest));
}

extern "C" void JOIN(content_hash_page_, BUILD)(const void* page, std::uint64_t* low_high) {
  constexpr std::size_t kPageBytes = 4096;
  const XXH128_hash_t hash = XXH3_128bits(page, kPageBytes);
  low_high[0] = hash.low64;
  low_high[1] = hash.high64;
}
