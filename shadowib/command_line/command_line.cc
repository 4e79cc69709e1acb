#include "shadowib/command_line/command_line.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>

namespace command_line {

// --version, help and complaints. False: the program is to end with *exit_code.
bool parse_and_tell(Command& program, const std::string& version, int argc, const char* const* argv,
                    const Command** used, int* exit_code);

namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string number_text(double number) {
  char text[40];
  std::snprintf(text, sizeof(text), number == static_cast<double>(static_cast<std::int64_t>(number)) ? "%.0f" : "%g",
                number);
  return text;
}

bool read_real(const std::string& text, double* to) {
  char* end = nullptr;
  *to = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && *to == *to && *to != std::numeric_limits<double>::infinity() &&
         *to != -std::numeric_limits<double>::infinity();
}

// A whole number that Value holds.
template <typename Value>
std::function<bool(const std::string&)> whole(Value& value) {
  return [&value](const std::string& text) {
    if (text.empty() || text.find_first_not_of("0123456789", text[0] == '-' ? 1 : 0) != std::string::npos)
      return false;
    errno = 0;
    if constexpr (std::numeric_limits<Value>::is_signed) {
      const long long number = std::strtoll(text.c_str(), nullptr, 10);
      value = static_cast<Value>(number);
      return errno == 0 && text != "-" && static_cast<long long>(value) == number;
    } else {
      const unsigned long long number = std::strtoull(text.c_str(), nullptr, 10);
      value = static_cast<Value>(number);
      return errno == 0 && text[0] != '-' && static_cast<unsigned long long>(value) == number;
    }
  };
}

}  // namespace

Option::Option(const std::string& names, std::string description, Take take)
    : description_(std::move(description)), take_(std::move(take)) {
  for (std::size_t begin = 0; begin < names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    (name[0] != '-' ? positional_ : name[1] == '-' ? long_ : short_) = name;
    begin = end + 1;
  }
}

Option* Option::type_name(std::string name) {
  type_ = std::move(name);
  return this;
}
Option* Option::required() {
  required_ = true;
  return this;
}
Option* Option::delimiter(char separator) {
  separator_ = separator;
  return this;
}
Option* Option::between(double least, double most, std::string things) {
  bounded_ = true;
  things_ = std::move(things);
  least_ = least;
  most_ = most;
  return this;
}
Option* Option::above(double bound) {
  least_allowed_ = false;
  return between(bound, std::numeric_limits<double>::max());
}
Option* Option::one_of(std::vector<std::string> words) {
  words_ = std::move(words);
  return this;
}
Option* Option::not_empty(std::string thing) {
  never_empty_ = std::move(thing);
  return this;
}
Option* Option::hidden() {
  hidden_ = true;
  return this;
}

Option* Option::completed_by(std::string shell_command) {
  candidates_ = std::move(shell_command);
  return this;
}

std::string Option::name() const { return is_positional() ? positional_ : !long_.empty() ? long_ : short_; }

std::string Option::complaint(const std::string& value) const {
  if (value.empty() && !never_empty_.empty()) return name() + ": it is empty; name " + never_empty_;
  return name() + ": '" + value + "' is " + rule();
}

std::string Option::rule() const {
  if (!words_.empty()) return "none of " + joined(words_);
  const std::string kind = !things_.empty()            ? "no number of " + things_
                           : number_ == Number::kWhole ? "no whole number"
                                                       : "no number";
  if (!bounded_) return kind;
  if (!least_allowed_) return kind + " above " + number_text(least_);
  return kind + " from " + number_text(least_) + " to " + number_text(most_);
}

bool Option::take(const std::string& value) {
  given_ = true;
  if (value.empty() && !never_empty_.empty()) return false;
  if (!words_.empty()) {
    bool found = false;
    for (const std::string& word : words_) found |= word == value;
    if (!found) return false;
  }
  if (bounded_) {
    double number = 0;
    if (!read_real(value, &number) || number < least_ || number > most_ || (!least_allowed_ && number == least_))
      return false;
  }
  return take_(value);
}

Option* Command::add(const std::string& names, std::string description, Option::Take take) {
  options_.emplace_back(new Option(names, std::move(description), std::move(take)));
  return options_.back().get();
}

Option* Command::add_option(const std::string& names, std::string& value, std::string description) {
  return add(names, std::move(description), [&value](const std::string& text) {
    value = text;
    return true;
  });
}
Option* Command::add_option(const std::string& names, std::optional<std::string>& value, std::string description) {
  return add(names, std::move(description), [&value](const std::string& text) {
    value = text;
    return true;
  });
}
Option* Command::add_option(const std::string& names, std::vector<std::string>& values, std::string description) {
  Option* option = add(names, std::move(description), [&values](const std::string& text) {
    values.push_back(text);
    return true;
  });
  option->list_ = true;
  return option;
}
Option* Command::add_option(const std::string& names, int& value, std::string description) {
  Option* option = add(names, std::move(description), whole(value))->type_name("N");
  option->number_ = Option::Number::kWhole;
  return option;
}
Option* Command::add_option(const std::string& names, std::uint32_t& value, std::string description) {
  Option* option = add(names, std::move(description), whole(value))->type_name("N");
  option->number_ = Option::Number::kWhole;
  return option;
}
Option* Command::add_option(const std::string& names, std::uint64_t& value, std::string description) {
  Option* option = add(names, std::move(description), whole(value))->type_name("N");
  option->number_ = Option::Number::kWhole;
  return option;
}
Option* Command::add_option(const std::string& names, double& value, std::string description) {
  Option* option = add(names, std::move(description), [&value](const std::string& text) {
                     return read_real(text, &value);
                   })->type_name("N");
  option->number_ = Option::Number::kReal;
  return option;
}

Option* Command::add_flag(const std::string& names, bool& value, std::string description) {
  const bool negated = names[0] == '!';
  Option* option =
      add(negated ? names.substr(1) : names, std::move(description), [&value, negated](const std::string&) {
        value = !negated;
        return true;
      });
  option->flag_ = true;
  return option;
}

Command* Command::add_subcommand(std::string name, std::string description) {
  subcommands_.push_back(std::make_unique<Command>(std::move(name), std::move(description)));
  subcommands_.back()->above_ = this;
  return subcommands_.back().get();
}

void Command::take_rest(std::vector<std::string>& rest, std::string usage) {
  rest_ = &rest;
  usage_ = std::move(usage);
}

std::string Command::full_name() const { return above_ != nullptr ? above_->full_name() + " " + name_ : name_; }

// Goes through the words of a command line once.
class Reading {
 public:
  Reading(Command* command, std::vector<std::string> words) : command_(command), words_(std::move(words)) {}

  bool read() {
    for (; at_ < words_.size(); ++at_) {
      const std::string& word = words_[at_];
      const bool option = !only_arguments_ && word.size() > 1 && word[0] == '-';
      if (command_->rest_ != nullptr && (!option || word == "--")) return take_rest();
      if (option && word == "--") {
        only_arguments_ = true;
        continue;
      }
      if (option ? !read_option(word) : !read_argument(word)) return false;
      if (wants_help_) return true;
    }
    for (const auto& option : command_->options_)
      if (option->required_ && !option->given_)
        return fail(option->name() + (option->is_positional() ? "" : " " + option->type_) + " is missing");
    if (!command_->subcommands_.empty() && !ends_itself()) return fail("which command?");
    return true;
  }

  bool wants_help() const { return wants_help_; }
  Command* command() const { return command_; }
  const std::string& why() const { return why_; }

 private:
  bool fail(std::string why) {
    why_ = std::move(why);
    return false;
  }

  // --help and --version need nothing else.
  bool ends_itself() const {
    for (const auto& option : command_->options_)
      if (option->given_) return true;
    return false;
  }

  bool take_rest() {
    const auto begin = words_.begin() + static_cast<std::ptrdiff_t>(at_);
    auto dashes = begin;
    while (dashes != words_.end() && *dashes != "--") ++dashes;
    // What stands before "--" and is no option is no program either.
    if (dashes != words_.end() && dashes != begin) return fail("unexpected argument '" + *begin + "' before --");
    command_->rest_->assign(dashes == begin && begin != words_.end() ? begin + 1 : begin, words_.end());
    at_ = words_.size();
    return true;
  }

  Option* find(const std::string& name) const {
    for (const auto& option : command_->options_)
      if (!option->is_positional() && (option->long_ == name || option->short_ == name)) return option.get();
    return nullptr;
  }

  bool read_option(const std::string& word) {
    const bool is_long = word[1] == '-';
    const std::size_t equals = is_long ? word.find('=') : std::string::npos;
    const std::string name = is_long ? word.substr(0, equals) : word.substr(0, 2);
    Option* option = find(name);
    if (option == nullptr) {
      wants_help_ = name == "--help" || name == "-h";
      return wants_help_ || fail("there is no option " + name);
    }
    if (option->flag_) {
      if (equals != std::string::npos) return fail(name + " takes no value");
      (void)option->take("");
      // -ek: both of them.
      return is_long || word.size() == 2 || read_option("-" + word.substr(2));
    }
    if (equals != std::string::npos) return give(option, word.substr(equals + 1));
    if (!is_long && word.size() > 2) return give(option, word.substr(2));
    if (at_ + 1 == words_.size() || is_option(words_[at_ + 1]))
      return fail(name + " needs a value, " + option->type_);
    return give(option, words_[++at_]);
  }

  // A negative number is a value.
  static bool is_option(const std::string& word) {
    return word.size() > 1 && word[0] == '-' && (word[1] < '0' || word[1] > '9') && word[1] != '.';
  }

  bool read_argument(const std::string& word) {
    if (!command_->subcommands_.empty()) {
      for (const auto& subcommand : command_->subcommands_)
        if (subcommand->name_ == word) {
          command_ = subcommand.get();
          return true;
        }
      return fail("there is no command '" + word + "'");
    }
    for (const auto& option : command_->options_)
      if (option->is_positional() && (option->list_ || !option->given_)) return give(option.get(), word);
    return fail("unexpected argument '" + word + "'");
  }

  bool give(Option* option, const std::string& value) {
    if (option->separator_ == '\0') return give_one(option, value);
    for (std::size_t begin = 0; begin <= value.size();) {
      const std::size_t end = std::min(value.find(option->separator_, begin), value.size());
      if (!give_one(option, value.substr(begin, end - begin))) return false;
      begin = end + 1;
    }
    return true;
  }

  bool give_one(Option* option, const std::string& value) {
    return option->take(value) || fail(option->complaint(value));
  }

  Command* command_;
  std::vector<std::string> words_;
  std::string why_;
  std::size_t at_ = 0;
  bool only_arguments_ = false, wants_help_ = false;
};

Command::Parsed Command::parse(int argc, const char* const* argv, std::string* why, const Command** used) {
  Reading reading(this, {argv + std::min(argc, 1), argv + argc});
  const bool good = reading.read();
  *why = reading.why();
  *used = reading.command();
  return !good ? Parsed::kWrong : reading.wants_help() ? Parsed::kHelp : Parsed::kGood;
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
    std::fprintf(stderr, "%s: internal error: %s\n", program.name_.c_str(), error.what());
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
    std::fprintf(stderr, "%s: %s; see %s --help\n", program.name_.c_str(), why.c_str(), (*used)->full_name().c_str());
    *exit_code = (*used)->usage_code_;
  } else if (parsed == Command::Parsed::kHelp) {
    std::fputs((*used)->help().c_str(), stdout);
  } else if (wants_version) {
    std::printf("%s %s\n", program.name_.c_str(), version.c_str());
  }
  return parsed == Command::Parsed::kGood && !wants_version;
}

}  // namespace command_line
