// How long settling waits: not for so long in all, but for so long without progress. Used by one thread.
#pragma once

#include <cstdint>

namespace shadowib {

class Patience {
 public:
  static constexpr std::int64_t kLookNs = 500'000'000;  // between looks at progress, which may cost something

  explicit Patience(std::int64_t now_ns) : moved_ns_(now_ns), look_ns_(now_ns + kLookNs) {}

  // True once `progress()`, a number that differs whenever something has happened, has been the same for longer than
  // `quiet()`, in nanoseconds. Both are asked at looks only.
  template <typename Progress, typename Quiet>
  bool is_lost(std::int64_t now_ns, Progress progress, Quiet quiet) {
    if (now_ns < look_ns_) return false;
    look_ns_ = now_ns + kLookNs;
    if (const std::uint64_t seen = progress(); !looked_ || seen != seen_) {
      moved_ns_ = now_ns;
      seen_ = seen;
      looked_ = true;
    }
    return now_ns - moved_ns_ > quiet();
  }

 private:
  std::int64_t moved_ns_, look_ns_;
  std::uint64_t seen_ = 0;
  bool looked_ = false;
};

}  // namespace shadowib
