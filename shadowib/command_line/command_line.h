// Options, arguments and sub-commands of a program: described once, then parsed, shown by --help and completed by
// shells.
//
// Knows nothing of shadowib. A library of templates (CLI11) takes longer to compile than all commands that use this.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  Option* above(double bound);
  Option* one_of(std::vector<std::string> words);
  Option* not_empty(std::string thing);  // a script's unset variable must not mean the default
  // Parsed as any other, but neither shown by help nor completed.
  Option* hidden();
  // Shells offer what this shell command prints, a line each. Where the type is FILE or DIR they offer those.
  Option* completed_by(std::string shell_command);

  // For help and completion.
  bool is_required() const { return required_; }
  bool is_positional() const { return long_.empty() && short_.empty(); }
  bool is_flag() const { return flag_; }
  bool is_hidden() const { return hidden_; }
  const std::string& long_name() const { return long_; }    // "--size", or ""
  const std::string& short_name() const { return short_; }  // "-s", or ""
  std::string name() const;  // the long name, else the short one; of an argument the word that stands for it
  const std::string& type() const { return type_; }
  const std::string& description() const { return description_; }
  const std::vector<std::string>& words() const { return words_; }
  const std::string& candidates() const { return candidates_; }

 private:
  friend class Command;
  friend class Reading;
  enum class Number { kNone, kWhole, kReal };
  // Writes a value. False: it is none; the rules above have been looked at before.
  using Take = std::function<bool(const std::string&)>;

  Option(const std::string& names, std::string description, Take take);
  std::string rule() const;  // what a wrong value is not
  std::string complaint(const std::string& value) const;
  bool take(const std::string& value);

  std::string long_, short_, positional_, type_ = "TEXT", description_, candidates_, things_, never_empty_;
  Take take_;
  Number number_ = Number::kNone;
  bool flag_ = false, list_ = false, required_ = false, hidden_ = false, given_ = false, bounded_ = false,
       least_allowed_ = true;
  double least_ = 0, most_ = 0;
  char separator_ = '\0';
  std::vector<std::string> words_;
};

class Command {
 public:
  Command(std::string name, std::string description) : name_(std::move(name)), description_(std::move(description)) {}
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Names as in "-s,--size"; a name without dashes is a positional argument. The value is written by parse(), and
  // must live until then. An option whose value is no list takes the last one given. The result lives as long as this
  // command.
  Option* add_option(const std::string& names, std::string& value, std::string description);
  Option* add_option(const std::string& names, std::optional<std::string>& value, std::string description);
  Option* add_option(const std::string& names, std::vector<std::string>& values, std::string description);
  Option* add_option(const std::string& names, int& value, std::string description);
  Option* add_option(const std::string& names, std::uint32_t& value, std::string description);
  Option* add_option(const std::string& names, std::uint64_t& value, std::string description);
  Option* add_option(const std::string& names, double& value, std::string description);
  // "!--no-windows": sets the value to false.
  Option* add_flag(const std::string& names, bool& value, std::string description);
  // Words that stand for values.
  template <typename Value>
  using Choices = std::vector<std::pair<std::string, Value>>;
  template <typename Value>
  Option* add_choice(const std::string& names, Value& value, const Choices<Value>& choices, std::string description) {
    return add(names, std::move(description),
               [&value, choices](const std::string& word) {
                 for (const auto& [name, meaning] : choices)
                   if (name == word) value = meaning;
                 return true;
               })
        ->one_of(words_of(choices));
  }
  // Given values replace the old list.
  template <typename Value>
  Option* add_choices(const std::string& names, std::vector<Value>& values, const Choices<Value>& choices,
                      std::string description) {
    return add(names, std::move(description),
               [&values, choices, first = true](const std::string& word) mutable {
                 if (std::exchange(first, false)) values.clear();
                 for (const auto& [name, meaning] : choices)
                   if (name == word) values.push_back(meaning);
                 return true;
               })
        ->one_of(words_of(choices));
  }

  Command* add_subcommand(std::string name, std::string description);
  // Text below the options in help.
  void footer(std::string text) { footer_ = std::move(text); }
  // The function that run() calls if this command was given. It returns the exit code.
  void callback(std::function<int()> function) { callback_ = std::move(function); }
  // run()'s exit code for wrong options of this command; else 2.
  void usage_code(int code) { usage_code_ = code; }
  // The words behind "--", or else from the first word that is no option, are another program's command line.
  void take_rest(std::vector<std::string>& rest, std::string usage);

  enum class Parsed { kGood, kHelp, kWrong };
  // Reads argv and writes the values. *used is this or the sub-command that was given. kWrong: *why says so in one
  // line.
  Parsed parse(int argc, const char* const* argv, std::string* why, const Command** used);
  std::string help() const;
  std::string full_name() const;  // with those of the commands above

  // For completion.
  const std::string& name() const { return name_; }
  const std::string& description() const { return description_; }
  const std::vector<std::unique_ptr<Option>>& options() const { return options_; }
  const std::vector<std::unique_ptr<Command>>& subcommands() const { return subcommands_; }
  bool takes_rest() const { return rest_ != nullptr; }

 private:
  friend class Reading;
  friend int run(Command& program, const std::string& version, int argc, const char* const* argv);
  friend bool parse_and_tell(Command& program, const std::string& version, int argc, const char* const* argv,
                             const Command** used, int* exit_code);

  Option* add(const std::string& names, std::string description, Option::Take take);
  template <typename Value>
  static std::vector<std::string> words_of(const Choices<Value>& choices) {
    std::vector<std::string> words;
    for (const auto& [word, value] : choices) words.push_back(word);
    return words;
  }

  std::string name_, description_, footer_, usage_;
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
