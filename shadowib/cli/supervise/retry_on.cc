#include "shadowib/cli/supervise/retry_on.h"

#include <algorithm>
#include <cerrno>

namespace shadowib::cli {
namespace {

bool parse_code(const std::string& text, unsigned* code) {
  constexpr std::size_t kMostDigits = 3;
  if (text.empty() || text.size() > kMostDigits || text.find_first_not_of("0123456789") != std::string::npos)
    return false;
  *code = static_cast<unsigned>(std::stoul(text));
  return *code >= 1 && *code <= 255;
}

}  // namespace

Status parse_exit_codes(const std::string& text, ExitCodes* codes) {
  codes->reset();
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const std::size_t dash = part.find('-');
    unsigned first = 0, last = 0;
    if (!parse_code(part.substr(0, dash), &first) ||
        !parse_code(dash == std::string::npos ? part : part.substr(dash + 1), &last) || first > last)
      return Status::of(Code::kUsage, EINVAL, "--retry-on '%.60s': use exit codes from 1 to 255, as 1,5,128-255",
                        text.c_str());
    for (unsigned code = first; code <= last; ++code) codes->set(code);
    at = end + 1;
  }
  return {};
}

}  // namespace shadowib::cli
