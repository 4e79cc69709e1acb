#include "libraries/masterworker/options.h"

#include <climits>
#include <cstdlib>
#include <cstring>

#include "libraries/masterworker/messages.h"

namespace shadowib::masterworker {
namespace {

constexpr char kPrefix[] = "--TOPC-";
constexpr std::size_t kPrefixLength = sizeof(kPrefix) - 1;

const Option* find(const std::vector<Option>& options, const std::string& name) {
  for (const Option& option : options)
    if (name == option.name) return &option;
  return nullptr;
}

bool parse(const std::string& text, int* value) {
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || number < INT_MIN || number > INT_MAX) return false;
  *value = static_cast<int>(number);
  return true;
}

}  // namespace

std::string take_options(std::vector<std::string>& words, const std::vector<Option>& options) {
  std::vector<std::string> left;
  std::string wrong;
  for (const std::string& word : words) {
    if (word.compare(0, kPrefixLength, kPrefix) != 0) {
      left.push_back(word);
      continue;
    }
    const std::size_t equals = word.find('=');
    const Option* option =
        find(options, word.substr(kPrefixLength, equals == std::string::npos ? equals : equals - kPrefixLength));
    const std::string value = equals == std::string::npos ? "1" : word.substr(equals + 1);
    if (option == nullptr)
      wrong = word + ": there is no such option; --TOPC-help lists them";
    else if (option->text != nullptr && equals != std::string::npos)
      *option->text = ::strdup(value.c_str());
    else if (int number = 0; option->text != nullptr || !parse(value, &number))
      wrong = word + (option->text != nullptr ? ": a value is needed" : ": a number is needed");
    else if (number < option->least)
      wrong = word + ": " + std::to_string(option->least) + " is the least";
    else
      *option->number = number;
  }
  words = std::move(left);
  return wrong;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool comment = false;
  for (const char c : text + "\n") {
    comment = c == '\n' ? false : comment || (c == '#' && word.empty());
    if (comment) continue;
    if (std::strchr(" \t\r\n", c) == nullptr) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(word);
      word.clear();
    }
  }
  return words;
}

std::optional<std::size_t> workers_of(const std::string& text) {
  int number = 0;
  if (parse(text, &number) && number >= 0 && static_cast<unsigned long>(number) <= kMostWorkers)
    return static_cast<std::size_t>(number);
  warn("somebody asks for \"%s\" workers; 0 to %lu may be asked for at once", text.c_str(), kMostWorkers);
  return std::nullopt;
}

std::string help_text(const std::string& program, const std::vector<Option>& options) {
  std::string text = "Options of task farms, for " + program + ":\n";
  for (const Option& option : options) {
    std::string left = std::string("  ") + kPrefix + option.name + (option.text != nullptr ? "=TEXT" : "[=N]");
    left.resize(std::max<std::size_t>(left.size() + 2, 34), ' ');
    text +=
        left + option.help + " (" +
        (option.text != nullptr ? (*option.text != nullptr ? *option.text : "") : std::to_string(*option.number)) +
        ")\n";
  }
  return text + "TOPC_OPTS and ~/.topcrc may hold them, too.\n";
}

}  // namespace shadowib::masterworker
