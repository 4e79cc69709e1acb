// Checks of options' values, whose messages name the value and what may stand in its place.
#pragma once

#include <CLI/CLI.hpp>

namespace shadowib::cli {

// A number of seconds, fractions too.
CLI::Validator seconds(double least, double most);
// A whole number of `things`.
CLI::Validator whole_number(unsigned least, unsigned most, const char* things);
// Anything but an empty word: a script's variable that is not set must not mean the default.
CLI::Validator not_empty(const char* thing);

}  // namespace shadowib::cli
