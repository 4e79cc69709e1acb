// Options, arguments and sub-commands of a program: described once, then parsed, shown by --help and completed by
// shells.
//
// Knows nothing of shadowib. CLI11 does the work. Its headers take seconds to compile, so command_line.cc alone
// includes them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace command_line {

// One option, flag or positional argument. Functions return this, so that calls can be chained.
class Option {
 public:
  // The word for the value in help: S in "--timeout S".
  Option* type_name(std::string name);
  Option* required();
  // A list's values may stand in one word, with `separator` between them.
  Option* delimiter(char separator);
  // Rules for the value. A complaint tells them.
  Option* between(double least, double most, std::string things = "");  // a number of these
  // Allows such a number or `word`, for an option that takes words.
  Option* between_or(double least, double most, std::string things, std::string word);
  Option* above(double bound);
  Option* one_of(std::vector<std::string> words);
  Option* not_empty(std::string thing);  // a script's unset variable must not mean the default
  // Parsed as any other, but neither shown by help nor completed.
  Option* hidden();
  // Shells offer what this shell command prints, a line each. Where the type is FILE or DIR they offer those.
  Option* completed_by(std::string shell_command);

  // For completion.
  bool is_positional() const;
  bool is_flag() const;
  bool is_hidden() const;
  std::string long_name() const;   // "--size", or ""
  std::string short_name() const;  // "-s", or ""
  std::string name() const;        // the long name, else the short one; an argument's word
  std::string type() const;
  std::string description() const;
  const std::vector<std::string>& words() const { return words_; }
  const std::string& candidates() const { return candidates_; }

 private:
  friend class Command;
  enum class Number { kNone, kWhole, kReal };

  Option(CLI::Option* option, Number number) : option_(option), number_(number) {}
  // Complains that the value is `rule` where `good` is false.
  Option* check(std::string rule, std::function<bool(const std::string&)> good);

  CLI::Option* option_;  // belongs to the App of the command
  Number number_;
  std::vector<std::string> words_;
  std::string candidates_;
};

class Command {
 public:
  Command(const std::string& name, const std::string& description);
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Names as in "-s,--size"; a name without dashes is a positional argument. The value is written by parse(), and
  // must live until then. An option whose value is no list takes the last one given. The result lives as long as this
  // command.
  Option* add_option(const std::string& names, std::string& value, const std::string& description);
  Option* add_option(const std::string& names, std::optional<std::string>& value, const std::string& description);
  Option* add_option(const std::string& names, std::vector<std::string>& values, const std::string& description);
  Option* add_option(const std::string& names, int& value, const std::string& description);
  Option* add_option(const std::string& names, std::uint32_t& value, const std::string& description);
  Option* add_option(const std::string& names, std::uint64_t& value, const std::string& description);
  Option* add_option(const std::string& names, double& value, const std::string& description);
  // "!--no-windows": sets the value to false.
  Option* add_flag(const std::string& names, bool& value, const std::string& description);
  // Words that stand for values.
  template <typename Value>
  using Choices = std::vector<std::pair<std::string, Value>>;
  template <typename Value>
  Option* add_choice(const std::string& names, Value& value, const Choices<Value>& choices,
                     const std::string& description) {
    return add_words(
        names, [&value, choices](const std::vector<std::string>& words) { value = meaning(choices, words.back()); },
        words_of(choices), false, description);
  }
  // Given values replace the old list.
  template <typename Value>
  Option* add_choices(const std::string& names, std::vector<Value>& values, const Choices<Value>& choices,
                      const std::string& description) {
    return add_words(
        names,
        [&values, choices](const std::vector<std::string>& words) {
          values.clear();
          for (const std::string& word : words) values.push_back(meaning(choices, word));
        },
        words_of(choices), true, description);
  }

  Command* add_subcommand(const std::string& name, const std::string& description);
  // Text below the options in help.
  void footer(std::string text);
  // The function that run() calls if this command was given. It returns the exit code.
  void callback(std::function<int()> function) { callback_ = std::move(function); }
  // run()'s exit code for wrong options of this command; else 2.
  void usage_code(int code) { usage_code_ = code; }
  // The words behind "--", or else from the first word that is no option, are another program's command line.
  void take_rest(std::vector<std::string>& rest, const std::string& usage);

  enum class Parsed { kGood, kHelp, kWrong };
  // Reads argv and writes the values. *used is this or the sub-command that was given. kWrong: *why says so in one
  // line.
  Parsed parse(int argc, const char* const* argv, std::string* why, const Command** used);
  std::string help() const;
  std::string full_name() const;  // with those of the commands above

  // For completion.
  std::string name() const;
  std::string description() const;
  const std::vector<std::unique_ptr<Option>>& options() const { return options_; }
  const std::vector<std::unique_ptr<Command>>& subcommands() const { return subcommands_; }
  bool takes_rest() const { return rest_ != nullptr; }

 private:
  friend int run(Command& program, const std::string& version, int argc, const char* const* argv);
  friend bool parse_and_tell(Command& program, const std::string& version, int argc, const char* const* argv,
                             const Command** used, int* exit_code);

  Command(std::shared_ptr<CLI::App> app, const Command* above) : app_(std::move(app)), above_(above) {}

  Option* add(CLI::Option* option, Option::Number number = Option::Number::kNone);
  Option* add_words(const std::string& names, std::function<void(const std::vector<std::string>&)> take,
                    std::vector<std::string> words, bool list, const std::string& description);
  template <typename Value>
  static std::vector<std::string> words_of(const Choices<Value>& choices) {
    std::vector<std::string> words;
    for (const auto& [word, value] : choices) words.push_back(word);
    return words;
  }
  template <typename Value>
  static Value meaning(const Choices<Value>& choices, const std::string& word) {
    for (const auto& [name, value] : choices)
      if (name == word) return value;
    return {};
  }

  Command* subcommand(const CLI::App* app) const;
  Command* taker(const std::vector<std::string>& words);
  std::string accept_rest(std::vector<std::string> program, bool dashes);
  std::string complaint(const std::string& error) const;

  std::shared_ptr<CLI::App> app_;
  const Command* above_ = nullptr;
  std::vector<std::unique_ptr<Option>> options_;
  std::vector<std::unique_ptr<Command>> subcommands_;
  std::function<int()> callback_;
  std::vector<std::string>* rest_ = nullptr;
  int usage_code_ = 2;
};

// The whole of a program that is one command. Adds --help and --version. Prints help, the version or a complaint and
// returns false, with the exit code of the program, if it is to end.
bool parse(Command& program, const std::string& version, int argc, const char* const* argv, int* exit_code);

// The whole of a program with sub-commands: parses, and runs the callback of the one that was given. Returns the exit
// code; 1 for an exception.
int run(Command& program, const std::string& version, int argc, const char* const* argv);

// A completion script for `shell`, "bash" or "zsh".
std::string completion(const Command& program, const std::string& shell);

}  // namespace command_line
