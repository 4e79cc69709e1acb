// The --TOPC- options: from ~/.topcrc, $TOPC_OPTS and the command line, the later ones over the earlier.
#pragma once

#include <climits>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace shadowib::masterworker {

// One option: where its value goes, as an int or a string.
struct Option {
  const char* name;  // "num-slaves"
  int* number;
  char** text;
  const char* help;
  int least = INT_MIN;  // of the int
};

// "--TOPC-..." taken out of `words` and set by `options`; other words stay, in order. Strings live for ever. Returns
// "" or what is wrong: "--TOPC-num-slaves=x: a number is needed".
std::string take_options(std::vector<std::string>& words, const std::vector<Option>& options);

// The words of a text: separated by white space, "#" to the end of a line is a comment.
std::vector<std::string> words_of(const std::string& text);

// How many workers a command has asked for. Nothing, and a warning, if the text is no number from 0 to kMostWorkers.
inline constexpr unsigned long kMostWorkers = 100'000;  // as `shadowib worker -n` and `restart --workers` have it
std::optional<std::size_t> workers_of(const std::string& text);

// One line per option, with present values.
std::string help_text(const std::string& program, const std::vector<Option>& options);

}  // namespace shadowib::masterworker
