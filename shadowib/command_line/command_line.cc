// The only unit that includes CLI11.
#include "shadowib/command_line/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <limits>

namespace command_line {

// --version, help and complaints. False: the program is to end with *exit_code.
bool parse_and_tell(Command& program, const std::string& version, int argc, const char* const* argv,
                    const Command** used, int* exit_code);

namespace {

constexpr std::size_t kColumn = 34;  // where descriptions begin in help

std::string number_text(double number) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.10g", number);
  return text;
}

// Decimal digits alone: CLI11 reads 010 as 8.
bool is_whole(const std::string& text, double* number) {
  std::int64_t whole = 0;
  if (!CLI::detail::lexical_cast(text, whole) || std::to_string(whole) != text) return false;
  *number = static_cast<double>(whole);
  return true;
}

bool is_option(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

// CLI11 takes the next word for the value of "--job=". With an empty word behind it the value is empty.
void give_empty_values(std::vector<std::string>* words) {
  for (auto word = words->begin(); word != words->end() && *word != "--"; ++word)
    if (word->starts_with("--") && word->find('=') == word->size() - 1) {
      word->pop_back();
      word = words->insert(word + 1, "");
    }
}

// Help in CLI11's layout, with the type of a value alone behind its option.
class Formatter : public CLI::Formatter {
 public:
  explicit Formatter(std::string program = "") : program_(std::move(program)) {
    column_width(kColumn);
    label("Positionals", "Arguments");
    label("SUBCOMMAND", "COMMAND");
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    usage.pop_back();
    return usage + program_ + "\n";
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_positional() || option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }

 private:
  std::string program_;  // another program's command line, in the usage
};

}  // namespace

Option* Option::check(std::string rule, std::function<bool(const std::string&)> good) {
  option_->check(CLI::Validator(
      [rule = std::move(rule), good = std::move(good)](std::string& value) {
        return good(value) ? std::string() : "'" + value + "' is " + rule;
      },
      ""));
  return this;
}

Option* Option::type_name(std::string name) {
  option_->type_name(std::move(name));
  return this;
}
Option* Option::required() {
  option_->required();
  return this;
}
Option* Option::delimiter(char separator) {
  option_->delimiter(separator);
  return this;
}
Option* Option::hidden() {
  option_->group("");
  return this;
}
Option* Option::completed_by(std::string shell_command) {
  candidates_ = std::move(shell_command);
  return this;
}

Option* Option::between(double least, double most, std::string things) {
  const bool whole = number_ == Number::kWhole;
  const std::string kind = !things.empty() ? "no number of " + things : whole ? "no whole number" : "no number";
  return check(kind + " from " + number_text(least) + " to " + number_text(most),
               [least, most, whole](const std::string& text) {
                 double number = 0;
                 return (whole ? is_whole(text, &number) : CLI::detail::lexical_cast(text, number)) &&
                        number >= least && number <= most;
               });
}
Option* Option::between_or(double least, double most, std::string things, std::string word) {
  return check(
      "no number of " + things + " from " + number_text(least) + " to " + number_text(most) + ", nor " + word,
      [least, most, word](const std::string& text) {
        double number = 0;
        return text == word || (CLI::detail::lexical_cast(text, number) && number >= least && number <= most);
      });
}
Option* Option::above(double bound) {
  return check("no number above " + number_text(bound), [bound](const std::string& text) {
    double number = 0;
    return CLI::detail::lexical_cast(text, number) && number > bound && number <= std::numeric_limits<double>::max();
  });
}
Option* Option::one_of(std::vector<std::string> words) {
  words_ = std::move(words);
  return check("none of " + CLI::detail::join(words_, ", "), [words = words_](const std::string& text) {
    return std::find(words.begin(), words.end(), text) != words.end();
  });
}
Option* Option::not_empty(std::string thing) {
  option_->check(CLI::Validator(
      [thing = std::move(thing)](std::string& value) {
        return value.empty() ? "it is empty; name " + thing : std::string();
      },
      ""));
  return this;
}

bool Option::is_positional() const { return option_->get_positional(); }
bool Option::is_flag() const { return option_->get_expected_max() == 0; }
bool Option::is_hidden() const { return option_->get_group().empty(); }
std::string Option::long_name() const {
  return option_->get_lnames().empty() ? "" : "--" + option_->get_lnames().front();
}
std::string Option::short_name() const {
  return option_->get_snames().empty() ? "" : "-" + option_->get_snames().front();
}
std::string Option::name() const { return option_->get_name(); }
std::string Option::type() const { return option_->get_type_name(); }
std::string Option::description() const { return option_->get_description(); }

Command::Command(const std::string& name, const std::string& description)
    : Command(std::make_shared<CLI::App>(description, name), nullptr) {
  app_->set_help_flag("-h,--help", "Print this help and exit");
  app_->formatter(std::make_shared<Formatter>());
}

Option* Command::add(CLI::Option* option, Option::Number number) {
  if (number != Option::Number::kNone) option->type_name("N");
  // A list takes one value at a time, or all that remain if it is an argument.
  if (option->get_items_expected_max() > 1)
    option->allow_extra_args(option->get_positional());
  else
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  options_.emplace_back(new Option(option, number));
  return options_.back().get();
}

Option* Command::add_option(const std::string& names, std::string& value, const std::string& description) {
  return add(app_->add_option(names, value, description));
}
Option* Command::add_option(const std::string& names, std::optional<std::string>& value,
                            const std::string& description) {
  // CLI11 takes "" for no value.
  return add(app_->add_option_function<std::string>(
      names, [&value](const std::string& text) { value = text; }, description));
}
Option* Command::add_option(const std::string& names, std::vector<std::string>& values,
                            const std::string& description) {
  return add(app_->add_option(names, values, description));
}
Option* Command::add_option(const std::string& names, int& value, const std::string& description) {
  return add(app_->add_option(names, value, description), Option::Number::kWhole);
}
Option* Command::add_option(const std::string& names, std::uint32_t& value, const std::string& description) {
  return add(app_->add_option(names, value, description), Option::Number::kWhole);
}
Option* Command::add_option(const std::string& names, std::uint64_t& value, const std::string& description) {
  return add(app_->add_option(names, value, description), Option::Number::kWhole);
}
Option* Command::add_option(const std::string& names, double& value, const std::string& description) {
  return add(app_->add_option(names, value, description), Option::Number::kReal);
}

Option* Command::add_flag(const std::string& names, bool& value, const std::string& description) {
  const bool negated = names[0] == '!';
  CLI::Option* flag = app_->add_flag_callback(
      negated ? names.substr(1) : names, [&value, negated] { value = !negated; }, description);
  return add(flag->disable_flag_override());
}

Option* Command::add_words(const std::string& names, std::function<void(const std::vector<std::string>&)> take,
                           std::vector<std::string> words, bool list, const std::string& description) {
  CLI::Option* option = app_->add_option_function(names, take, description);
  if (!list) option->expected(1);
  return add(option)->one_of(std::move(words));
}

Command* Command::add_subcommand(const std::string& name, const std::string& description) {
  CLI::App* app = app_->add_subcommand(name, description)->group("Commands");
  app_->require_subcommand(0, 1);  // a job may be called as a command
  subcommands_.emplace_back(new Command(std::shared_ptr<CLI::App>(app_, app), this));
  return subcommands_.back().get();
}

void Command::footer(std::string text) { app_->footer(std::move(text)); }

void Command::take_rest(std::vector<std::string>& rest, const std::string& usage) {
  rest_ = &rest;
  app_->prefix_command();
  app_->formatter(std::make_shared<Formatter>(usage));
}

std::string Command::name() const { return app_->get_name(); }
std::string Command::description() const { return app_->get_description(); }
std::string Command::full_name() const { return above_ != nullptr ? above_->full_name() + " " + name() : name(); }

std::string Command::help() const {
  std::string text = app_->get_formatter()->make_help(app_.get(), full_name(), CLI::AppFormatMode::Normal);
  // CLI11 leaves blank lines for hidden options and for an empty footer.
  text = CLI::detail::find_and_replace(text, "\n\n\n", "\n\n");
  return text.substr(0, text.find_last_not_of('\n') + 1) + "\n";
}

Command* Command::subcommand(const CLI::App* app) const {
  for (const auto& command : subcommands_)
    if (command->app_.get() == app) return command.get();
  return nullptr;
}

// The command in `words` that takes another program's command line, or null.
Command* Command::taker(const std::vector<std::string>& words) {
  if (rest_ != nullptr) return this;
  if (words.empty()) return nullptr;
  for (const auto& command : subcommands_)
    if (command->name() == words[0] && command->rest_ != nullptr) return command.get();
  return nullptr;
}

// What keeps the words that CLI11 left over from being a program; "" if they are one. `program` stood behind dashes.
std::string Command::accept_rest(std::vector<std::string> program, bool dashes) {
  const std::vector<std::string> words = app_->remaining();
  if (!words.empty() && (dashes || is_option(words[0])))
    return is_option(words[0]) ? complaint("") : "unexpected argument '" + words[0] + "' before --";
  *rest_ = dashes ? std::move(program) : words;
  return "";
}

// A word that CLI11 does not know comes before all else that is wrong.
std::string Command::complaint(const std::string& error) const {
  for (const std::string& word : app_->remaining()) {
    if (word == "--") continue;
    if (is_option(word)) return "there is no option " + word.substr(0, word.find('='));
    if (rest_ != nullptr) break;  // another program's
    return subcommands_.empty() ? "unexpected argument '" + word + "'" : "there is no command '" + word + "'";
  }
  return CLI::detail::find_and_replace(error, "\n", " ");
}

Command::Parsed Command::parse(int argc, const char* const* argv, std::string* why, const Command** used) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc), program;
  Command* other = taker(words);
  const auto dashes = other != nullptr ? std::find(words.begin(), words.end(), "--") : words.end();
  const bool split = dashes != words.end();
  if (split) {
    program.assign(dashes + 1, words.end());
    words.erase(dashes, words.end());
  }
  if (other == nullptr || split) give_empty_values(&words);
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  const auto given = [this]() -> Command* {
    const auto parsed = app_->get_subcommands();
    return parsed.empty() ? this : subcommand(parsed.back());
  };
  why->clear();
  try {
    app_->parse(words);
    *used = given();
    if (*used == other) *why = other->accept_rest(std::move(program), split);
    if (*used == this && !subcommands_.empty() && app_->parse_order().empty()) *why = "which command?";
  } catch (const CLI::CallForHelp&) {
    *used = given();
    return Parsed::kHelp;
  } catch (const CLI::ParseError& error) {
    *used = given();
    *why = (*used)->complaint(error.what());
  }
  return why->empty() ? Parsed::kGood : Parsed::kWrong;
}

bool parse(Command& program, const std::string& version, int argc, const char* const* argv, int* exit_code) {
  const Command* used = nullptr;
  *exit_code = 0;
  return parse_and_tell(program, version, argc, argv, &used, exit_code);
}

int run(Command& program, const std::string& version, int argc, const char* const* argv) {
  const Command* used = nullptr;
  int exit_code = 0;
  if (!parse_and_tell(program, version, argc, argv, &used, &exit_code)) return exit_code;
  try {
    return used->callback_ ? used->callback_() : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: internal error: %s\n", program.name().c_str(), error.what());
    return 1;
  }
}

bool parse_and_tell(Command& program, const std::string& version, int argc, const char* const* argv,
                    const Command** used, int* exit_code) {
  bool wants_version = false;
  program.add_flag("--version", wants_version, "Print the version and exit");
  std::string why;
  const Command::Parsed parsed = program.parse(argc, argv, &why, used);
  if (parsed == Command::Parsed::kWrong) {
    std::fprintf(stderr, "%s: %s; see %s --help\n", program.name().c_str(), why.c_str(),
                 (*used)->full_name().c_str());
    *exit_code = (*used)->usage_code_;
  } else if (parsed == Command::Parsed::kHelp) {
    std::fputs((*used)->help().c_str(), stdout);
  } else if (wants_version) {
    std::printf("%s %s\n", program.name().c_str(), version.c_str());
  }
  return parsed == Command::Parsed::kGood && !wants_version;
}

}  // namespace command_line
