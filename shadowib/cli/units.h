// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace shadowib::cli {

std::string human_bytes(std::uint64_t bytes);  // "1.5 GiB"
std::string human_time(std::int64_t ns);       // "12.3 ms"
std::string human_seconds(double seconds);     // "12 s", "3 min", "2 h 5 min", "4 d 3 h"
std::string human_count(double number);        // "12.3 k"

}  // namespace shadowib::cli
