// The moment until which something is waited for, on CLOCK_MONOTONIC. No heap; usable in a stopped member.
#pragma once

#include <algorithm>
#include <climits>
#include <compare>
#include <cstdint>

#include "shadowib/base/lock.h"

namespace shadowib {

class Deadline {
 public:
  static Deadline in_ns(std::int64_t ns) { return Deadline(monotonic_ns() + ns); }
  static Deadline in_ms(std::int64_t ms) { return in_ns(ms * 1'000'000); }
  // Below 0: never.
  static Deadline in_ms_or_never(std::int64_t ms) { return ms < 0 ? Deadline(kNever) : in_ms(ms); }

  bool has_passed() const { return monotonic_ns() >= at_ns_; }
  // CLOCK_MONOTONIC, for those who count by themselves.
  std::int64_t at_ns() const { return at_ns_; }
  // 0 once it has passed.
  std::int64_t left_ns() const {
    return at_ns_ == kNever ? kNever : std::max<std::int64_t>(at_ns_ - monotonic_ns(), 0);
  }
  // Rounded up: 0 only once it has passed. INT_MAX at most.
  int left_ms() const {
    const std::int64_t ns = left_ns();
    return static_cast<int>(std::min<std::int64_t>(ns / 1'000'000 + (ns % 1'000'000 != 0 ? 1 : 0), INT_MAX));
  }

  // The earlier one is less.
  auto operator<=>(const Deadline&) const = default;

 private:
  static constexpr std::int64_t kNever = INT64_MAX;
  explicit Deadline(std::int64_t at_ns) : at_ns_(at_ns) {}
  std::int64_t at_ns_;
};

}  // namespace shadowib
