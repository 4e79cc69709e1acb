// Runs of borrowed pages as images of version 9 have them: some 3 bytes each instead of 16. Changed pages lie
// scattered, so after many checkpoints in a row an image has a run for every few pages.
//
// For the saving side and for readers; no heap, no libc.
#pragma once

#include <cstdint>

#include "hooks/imager/image_format.h"

namespace shadowib {

// The runs of one record, one after the other. IMAGE_FORMAT.md says what the bytes mean.
class BorrowedRunCoder {
 public:
  static constexpr std::uint64_t kMostBytes = 1 + 10 + 5 + 5;  // of a run

  // Returns the bytes written to `to`, which has room for kMostBytes.
  std::uint64_t put(const BorrowedRun& run, std::uint8_t* to) {
    const auto pack = static_cast<std::uint32_t>(run.address_and_pack & kPackBits);
    const std::uint64_t first = run.address_and_pack / kPage;
    const auto skipped = static_cast<std::int32_t>(run.first_page - next_[pack]);
    std::uint8_t* at = to;
    *at++ =
        static_cast<std::uint8_t>(pack | (run.page_count == 1 ? kOnePage : 0u) | (skipped == 0 ? kFollowsPages : 0u));
    at = put_number(folded(static_cast<std::int64_t>((first - end_) << kPageBits) >> kPageBits), at);
    if (run.page_count != 1) at = put_number(run.page_count, at);
    if (skipped != 0) at = put_number(folded(skipped), at);
    go_on(pack, first, run);
    return static_cast<std::uint64_t>(at - to);
  }

  // Reads the next run from at[0..bytes). Returns how many bytes it has; 0: there is no whole run, or none that put()
  // writes. Whether its pack, its pages and its address exist is the caller's to judge.
  std::uint64_t get(const std::uint8_t* at, std::uint64_t bytes, BorrowedRun* run) {
    const std::uint8_t *const begin = at, *const end = at + bytes;
    if (at == end) return 0;
    const std::uint8_t head = *at++;
    const std::uint32_t pack = head & kPack;
    std::uint64_t distance = 0, count = 1, skipped = 0;
    if (!get_number(&at, end, &distance)) return 0;
    if ((head & kOnePage) == 0 && (!get_number(&at, end, &count) || count < 2 || count > ~0u)) return 0;
    if ((head & kFollowsPages) == 0 && (!get_number(&at, end, &skipped) || skipped == 0 || skipped > ~0u)) return 0;
    const std::uint64_t first = (end_ + unfolded(distance)) & (~std::uint64_t{0} >> kPageBits);
    *run = BorrowedRun{first * kPage | pack, next_[pack] + static_cast<std::uint32_t>(unfolded(skipped)),
                       static_cast<std::uint32_t>(count)};
    go_on(pack, first, *run);
    return static_cast<std::uint64_t>(at - begin);
  }

 private:
  static constexpr std::uint32_t kPack = kMostPacks - 1, kOnePage = 64, kFollowsPages = 128;
  static_assert((kMostPacks & kPack) == 0 && kMostPacks <= kOnePage);
  static constexpr int kPageBits = 12;
  static_assert(std::uint64_t{1} << kPageBits == kPage);

  // Small numbers of either sign become small ones.
  static std::uint64_t folded(std::int64_t n) {
    return static_cast<std::uint64_t>(n) << 1 ^ static_cast<std::uint64_t>(n >> 63);
  }
  static std::uint64_t unfolded(std::uint64_t n) { return n >> 1 ^ (0 - (n & 1)); }

  // Seven bits a byte, the low ones first; the last byte is below 128.
  static std::uint8_t* put_number(std::uint64_t n, std::uint8_t* at) {
    for (; n >= 128; n >>= 7) *at++ = static_cast<std::uint8_t>(n | 128);
    *at++ = static_cast<std::uint8_t>(n);
    return at;
  }
  static bool get_number(const std::uint8_t** at, const std::uint8_t* end, std::uint64_t* n) {
    *n = 0;
    for (int shift = 0; *at != end && shift < 64; shift += 7) {
      const std::uint8_t byte = *(*at)++;
      *n |= std::uint64_t{byte & 127u} << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  void go_on(std::uint32_t pack, std::uint64_t first, const BorrowedRun& run) {
    end_ = first + run.page_count;
    next_[pack] = run.first_page + run.page_count;
  }

  std::uint64_t end_ = 0;                // number of the page behind the last run
  std::uint32_t next_[kMostPacks] = {};  // of each pack, the page behind the last run's
};

}  // namespace shadowib
