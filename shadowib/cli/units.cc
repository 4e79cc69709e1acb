#include "shadowib/cli/units.h"

#include <cstdio>

namespace shadowib::cli {
namespace {

template <typename... Args>
std::string formatted(const char* format, Args... args) {
  char text[64];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

}  // namespace

std::string human_bytes(std::uint64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? formatted("%.0f %s", value, kUnits[unit]) : formatted("%.1f %s", value, kUnits[unit]);
}

std::string human_time(std::int64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 1000000) return formatted("%.0f us", value / 1e3);
  if (ns < 1000000000) return formatted("%.1f ms", value / 1e6);
  return formatted("%.2f s", value / 1e9);
}

std::string human_seconds(double seconds) {
  if (seconds < 0) seconds = 0;
  const auto whole = static_cast<long long>(seconds + 0.5);
  if (whole < 10) return formatted("%.1f s", seconds);
  if (whole < 120) return formatted("%lld s", whole);
  const long long minutes = whole / 60, hours = minutes / 60, days = hours / 24;
  if (minutes < 120) return formatted("%lld min", minutes);
  if (hours < 48) return formatted("%lld h %lld min", hours, minutes % 60);
  return formatted("%lld d %lld h", days, hours % 24);
}

std::string human_count(double number) {
  static const char* const kUnits[] = {"", " k", " M", " G", " T"};
  int unit = 0;
  for (; number >= 1000 && unit < 4; ++unit) number /= 1000;
  return formatted(unit == 0 ? "%.0f%s" : "%.1f%s", number, kUnits[unit]);
}

}  // namespace shadowib::cli
