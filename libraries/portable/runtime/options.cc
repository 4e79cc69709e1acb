#include "libraries/portable/runtime/options.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace shadowib::portable {
namespace {

[[noreturn]] void bad_value(const char* name, const char* value, const char* wanted) {
  std::fprintf(stderr, "shadowib: %s is '%s', and must be %s\n", name, value, wanted);
  std::exit(2);
}

std::uint64_t number_of(const char* name) {
  const char* value = std::getenv(name);
  std::uint64_t number = 0;
  if (value && !parse_number(value, &number)) bad_value(name, value, "a number");
  return number;
}

bool flag_of(const char* name) {
  const char* value = std::getenv(name);
  if (value && std::strcmp(value, "0") != 0 && std::strcmp(value, "1") != 0) bad_value(name, value, "0 or 1");
  return value && *value == '1';
}

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string path_of(const char* name) {
  const char* value = std::getenv(name);
  if (value && !*value) bad_value(name, value, "a path");
  return value ? value : "";
}

std::vector<std::uint64_t> numbers_of(const char* name) {
  std::vector<std::uint64_t> numbers;
  const char* value = std::getenv(name);
  std::string rest = value ? value : "";
  while (!rest.empty()) {
    auto comma = rest.find(',');
    std::uint64_t number = 0;
    if (!parse_number(rest.substr(0, comma).c_str(), &number)) bad_value(name, value, "numbers, with commas between");
    numbers.push_back(number);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
  }
  return numbers;
}

Options read_options() {
  Options options;
  options.everywhere = number_of("SHADOWIB_PORTABLE_EVERYWHERE");
  options.interval_s = number_of("SHADOWIB_PORTABLE_INTERVAL");
  options.at = numbers_of("SHADOWIB_PORTABLE_AT");
  options.report = flag_of("SHADOWIB_PORTABLE_REPORT");
  options.directory = path_of("SHADOWIB_PORTABLE_DIR");
  const std::uint64_t member = number_of("SHADOWIB_PORTABLE_MEMBER");
  if (member > UINT32_MAX)
    bad_value("SHADOWIB_PORTABLE_MEMBER", std::getenv("SHADOWIB_PORTABLE_MEMBER"), "less than 2^32");
  options.member = static_cast<std::uint32_t>(member);
  options.from = path_of("SHADOWIB_PORTABLE_FROM");
  options.job = path_of("SHADOWIB_PORTABLE_JOB");
  if (std::getenv("SHADOWIB_PORTABLE_LOCK")) options.job_lock = static_cast<int>(number_of("SHADOWIB_PORTABLE_LOCK"));
  options.record = value_of("SHADOWIB_PORTABLE_RECORD");
  options.exact = flag_of("SHADOWIB_PORTABLE_EXACT");
  return options;
}

}  // namespace

bool parse_number(const char* text, std::uint64_t* number) {
  std::uint64_t value = 0;
  if (!*text) return false;
  for (; *text; text++) {
    if (*text < '0' || *text > '9') return false;
    unsigned digit = *text - '0';
    if (value > (static_cast<std::uint64_t>(INT64_MAX) - digit) / 10) return false;
    value = value * 10 + digit;
  }
  *number = value;
  return true;
}

const Options& options() {
  static const Options* only = [] {
    const auto* options = new Options(read_options());
    // Of this process alone: what it starts is another program, and no member of its job.
    unsetenv("SHADOWIB_PORTABLE_FROM");
    if (options->job.empty()) return options;
    for (const char* name :
         {"SHADOWIB_PORTABLE_JOB", "SHADOWIB_PORTABLE_MEMBER", "SHADOWIB_PORTABLE_LOCK", "SHADOWIB_PORTABLE_RECORD"})
      unsetenv(name);
    return options;
  }();
  return *only;
}

}  // namespace shadowib::portable
