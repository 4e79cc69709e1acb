// What --help prints.
#include "shadowib/command_line/command_line.h"

namespace command_line {
namespace {

constexpr std::size_t kColumn = 34;  // where descriptions begin

// A description may have several lines.
std::string line(const std::string& left, const std::string& description) {
  std::string text = "  " + left;
  text += text.size() < kColumn ? std::string(kColumn - text.size(), ' ') : "\n" + std::string(kColumn, ' ');
  for (char c : description) text += c == '\n' ? "\n" + std::string(kColumn, ' ') : std::string(1, c);
  return text + "\n";
}

std::string left_side(const Option& option) {
  if (option.is_positional()) return option.name();
  std::string text = option.short_name();
  if (!option.long_name().empty()) text += (text.empty() ? "" : ",") + option.long_name();
  return option.is_flag() ? text : text + " " + option.type();
}

// The lines of all arguments, or of all options.
std::string lines_of(const Command& command, bool positional) {
  std::string text;
  for (const auto& option : command.options())
    if (option->is_positional() == positional && !option->is_hidden())
      text += line(left_side(*option), option->description());
  return text;
}

}  // namespace

std::string Command::help() const {
  std::string text = description_ + "\nUsage: " + full_name() + " [OPTIONS]" + usage_;
  for (const auto& option : options_)
    if (option->is_positional()) text += option->is_required() ? " " + option->name() : " [" + option->name() + "]";
  if (!subcommands_.empty()) text += " COMMAND";
  text += "\n";
  if (const std::string arguments = lines_of(*this, true); !arguments.empty()) text += "\nArguments:\n" + arguments;
  text += "\nOptions:\n" + line("-h,--help", "Print this help and exit") + lines_of(*this, false);
  if (!subcommands_.empty()) text += "\nCommands:\n";
  for (const auto& subcommand : subcommands_) text += line(subcommand->name(), subcommand->description());
  return footer_.empty() ? text : text + "\n" + footer_;
}

}  // namespace command_line
