// The time of the day, as files and histories have it.
#pragma once

#include <time.h>

#include <cstdint>

namespace shadowib {

// Nanoseconds since 1970 (UTC). Whoever sets the clock moves it: waits and durations take monotonic_ns().
inline std::int64_t wall_clock_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace shadowib
