#include "shadowib/cli/supervise/time_limit.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace shadowib::cli {
namespace {

constexpr double kMargin = 1.5, kPart = 0.95, kLeastSaveS = 2, kUnknownS = 60;
constexpr std::size_t kLatest = 8;  // sets; one that only adds pages is small, the next one may be whole
constexpr std::int64_t kDayS = 86400;

bool parse_seconds(const std::string& text, std::int64_t* end_s) {
  constexpr std::size_t kMostDigits = 12;
  if (text.empty() || text.size() > kMostDigits || text.find_first_not_of("0123456789") != std::string::npos)
    return false;
  *end_s = std::stoll(text);
  return true;
}

bool parse_local(const std::string& text, const char* form, tm* broken) {
  const char* end = ::strptime(text.c_str(), form, broken);
  return end != nullptr && *end == '\0';
}

bool parse_clock(const std::string& text, std::int64_t now_s, std::int64_t* end_s) {
  const time_t now = now_s;
  tm broken{};
  ::localtime_r(&now, &broken);
  broken.tm_sec = 0;
  const bool has_date = text.find('T') != std::string::npos;
  if (!parse_local(text, has_date ? "%Y-%m-%dT%H:%M:%S" : "%H:%M:%S", &broken)) {
    broken.tm_sec = 0;
    if (!parse_local(text, has_date ? "%Y-%m-%dT%H:%M" : "%H:%M", &broken)) return false;
  }
  broken.tm_isdst = -1;
  *end_s = ::mktime(&broken);
  if (has_date || *end_s > now_s) return true;
  ++broken.tm_mday;  // tomorrow, which may have 23 hours or 25
  broken.tm_isdst = -1;
  *end_s = ::mktime(&broken);
  return true;
}

// What 95 % of `values` are below; -1: there is none.
double usual(std::vector<double> values) {
  if (values.empty()) return -1;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(std::ceil(kPart * static_cast<double>(values.size()))) - 1];
}

// The time that a copy to a far place takes; 0: there is none.
double usual_flush_s(const std::vector<PastEvent>& events) {
  std::vector<double> took_s;
  for (const PastEvent& e : events)
    if (e.name == "flush" && e.has("took_ms")) took_s.push_back(e.number("took_ms") / 1e3);
  return std::max(usual(std::move(took_s)), 0.0);
}

}  // namespace

bool parse_duration(const std::string& text, double* seconds) {
  char* end = nullptr;
  *seconds = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(*seconds)) return false;
  const std::string unit = end;
  if (unit == "m") *seconds *= 60;
  if (unit == "h") *seconds *= 3600;
  if (unit == "d") *seconds *= static_cast<double>(kDayS);
  return unit.empty() || unit == "s" || unit == "m" || unit == "h" || unit == "d";
}

Status parse_until(const std::string& text, std::int64_t now_s, const std::string& slurm_end, std::int64_t* end_s) {
  double duration_s = 0;
  bool known = true;
  if (text == "slurm") {
    if (!parse_seconds(slurm_end, end_s))
      return Status(Code::kUsage, EINVAL,
                    "--until slurm: SLURM_JOB_END_TIME is not set; is this a job of a Slurm that sets it?");
  } else if (text.starts_with('@')) {
    known = parse_seconds(text.substr(1), end_s);
  } else if (text.find(':') != std::string::npos) {
    known = parse_clock(text, now_s, end_s);
  } else if ((known = parse_duration(text, &duration_s) && std::abs(duration_s) < 1e9)) {
    *end_s = now_s + static_cast<std::int64_t>(std::ceil(duration_s));
  }
  if (!known)
    return Status::of(Code::kUsage, EINVAL,
                      "--until '%.60s' is no time: use 90m, 18:30, 2026-11-27T18:30, @SECONDS or slurm",
                      text.c_str());
  if (*end_s <= now_s) return Status::of(Code::kUsage, EINVAL, "--until '%.60s' has passed", text.c_str());
  return {};
}

double save_time_s(const std::vector<PastEvent>& events) {
  std::vector<double> besides_s, s_per_byte, bytes;
  for (const PastEvent& e : events) {
    if (e.name != "checkpoint" || !e.has("took_ms")) continue;
    const double written_s = e.number("bytes") > 0 ? e.number("save_ms") / 1e3 : 0;
    besides_s.push_back(std::max(e.number("took_ms") / 1e3 - written_s, 0.0));
    bytes.push_back(e.number("bytes"));
    if (written_s > 0) s_per_byte.push_back(written_s / bytes.back());
  }
  if (besides_s.empty()) return -1;
  const auto latest = bytes.end() - static_cast<std::ptrdiff_t>(std::min(bytes.size(), kLatest));
  const double writing_s = std::max(usual(std::move(s_per_byte)), 0.0) * *std::max_element(latest, bytes.end());
  return std::max(kMargin * (usual(std::move(besides_s)) + writing_s + usual_flush_s(events)), kLeastSaveS);
}

double last_save_s(const std::vector<PastEvent>& events, double timeout_s, double given_s) {
  const double save_s = save_time_s(events);
  return std::min(save_s < 0 ? std::min(timeout_s, kUnknownS) : save_s, given_s / 2);
}

}  // namespace shadowib::cli
