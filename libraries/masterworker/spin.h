// How long to poll for a message before a sleep. No I/O.
//
// A sleep and the wake-up behind it take longer than a message does. So where messages come soon, each side polls for
// longer than the other takes to wake up: else one sleep makes the other side sleep, too, and so on. Where the last
// message took its time, the next one will, and the processor is for others.
#pragma once

#include <cstdint>

namespace shadowib::masterworker {

class Spin {
 public:
  static constexpr std::int64_t kShortNs = 20'000, kLongNs = 100'000;
  // Looks for a message between two at the clock, which takes as long as a look.
  static constexpr int kLooks = 8;

  // Whether one that has waited for so long shall sleep.
  bool over(std::int64_t waited_ns) const { return waited_ns >= (soon_ ? kLongNs : kShortNs); }
  // A message has come after so long.
  void came(std::int64_t waited_ns) { soon_ = waited_ns < kLongNs; }

 private:
  bool soon_ = false;
};

}  // namespace shadowib::masterworker
