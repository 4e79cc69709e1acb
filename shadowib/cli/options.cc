#include "shadowib/cli/options.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace shadowib::cli {
namespace {

std::string short_number(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.10g", number);
  return text;
}

}  // namespace

CLI::Validator seconds(double least, double most) {
  return {[least, most](std::string& word) -> std::string {
            char* end = nullptr;
            const double value = std::strtod(word.c_str(), &end);
            if (!word.empty() && *end == '\0' && std::isfinite(value) && value >= least && value <= most) return {};
            return "'" + word + "' is no number of seconds from " + short_number(least) + " to " + short_number(most);
          },
          ""};
}

CLI::Validator whole_number(unsigned least, unsigned most, const char* things) {
  return {[least, most, things](std::string& word) -> std::string {
            const bool digits = word.find_first_not_of("0123456789") == std::string::npos;
            const unsigned long value = digits && !word.empty() && word.size() < 10 ? std::stoul(word) : 0;
            if (digits && !word.empty() && word.size() < 10 && value >= least && value <= most) return {};
            return "'" + word + "' is no number of " + things + " from " + std::to_string(least) + " to " +
                   std::to_string(most);
          },
          ""};
}

CLI::Validator not_empty(const char* thing) {
  return {[thing](std::string& word) -> std::string {
            return word.empty() ? std::string("it is empty; name ") + thing : std::string();
          },
          ""};
}

}  // namespace shadowib::cli
