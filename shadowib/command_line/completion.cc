// Completion scripts for bash and zsh, from the description of a program.
#include <algorithm>

#include "shadowib/command_line/command_line.h"

namespace command_line {
namespace {

// In single quotes, as both shells read it.
std::string in_quotes(const std::string& text) {
  std::string result = "'";
  for (char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

bool is_file(const Option& option) { return option.type() == "FILE" || option.type() == "IMAGE"; }

// All names of options that may follow, --help included.
std::string option_names(const Command& command) {
  std::vector<std::string> names{"-h", "--help"};
  for (const auto& option : command.options())
    for (const std::string& name : {option->short_name(), option->long_name()})
      if (!option->is_hidden() && !name.empty()) names.push_back(name);
  return joined(names);
}

// --- bash ---

// What completes a value, in terms of $current.
std::string bash_values(const Option& option) {
  if (!option.words().empty()) return "compgen -W " + in_quotes(joined(option.words())) + " -- \"$current\"";
  if (!option.candidates().empty())
    return "compgen -W \"$(" + option.candidates() + " 2>/dev/null)\" -- \"$current\"";
  if (is_file(option)) return "compgen -f -- \"$current\"";
  return option.type() == "DIR" ? "compgen -d -- \"$current\"" : ":";
}

std::string bash_case(const Command& command) {
  std::string text = "    " + (command.name().empty() ? "''" : command.name()) + ")\n      case $previous in\n";
  for (const auto& option : command.options()) {
    if (option->is_positional() || option->is_flag() || option->is_hidden()) continue;
    std::string names = option->short_name();
    if (!option->long_name().empty()) names += (names.empty() ? "" : "|") + option->long_name();
    text += "        " + names + ") mapfile -t COMPREPLY < <(" + bash_values(*option) + "); return ;;\n";
  }
  text += "      esac\n      options=" + in_quotes(option_names(command)) + "\n";
  for (const auto& option : command.options())
    if (option->is_positional()) {
      text += "      arguments() { " + bash_values(*option) + "; }\n";
      break;
    }
  if (command.takes_rest()) text += "      arguments() { compgen -c -- \"$current\"; }\n";
  return text + "      ;;\n";
}

std::string bash_completion(const Command& program) {
  std::vector<std::string> commands;
  for (const auto& command : program.subcommands()) commands.push_back(command->name());
  const std::string function = "_" + program.name();
  std::string text =
      "# bash completion of " + program.name() + ". Made by " + program.name() + " --completion bash.\n" + function +
      "() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= options= i\n"
      "  COMPREPLY=()\n"
      "  arguments() { :; }\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    # Behind -- stands another command.\n"
      "    if [[ ${COMP_WORDS[i]} == -- ]]; then\n"
      "      if declare -F _command_offset >/dev/null; then _command_offset $((i + 1)); fi\n"
      "      return\n"
      "    fi\n"
      "    case ${COMP_WORDS[i]} in\n";
  std::string names;
  for (const std::string& name : commands) names += (names.empty() ? "" : "|") + name;
  text += "      " + (names.empty() ? "''" : names) + ") command=${command:-${COMP_WORDS[i]}} ;;\n    esac\n  done\n";
  text += "  case $command in\n";
  for (const auto& command : program.subcommands()) text += bash_case(*command);
  text += "    *)\n      options=" + in_quotes(option_names(program)) + "\n      arguments() { compgen -W " +
          in_quotes(joined(commands)) + " -- \"$current\"; }\n      ;;\n  esac\n";
  return text +
         "  if [[ $current == -* ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$current\")\n"
         "  else\n"
         "    mapfile -t COMPREPLY < <(arguments)\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F " +
         function + " " + program.name() + "\n";
}

// --- zsh ---

// In _arguments, brackets and colons have a meaning.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string zsh_values(const Option& option) {
  if (!option.words().empty()) return "(" + joined(option.words()) + ")";
  if (!option.candidates().empty()) return "{compadd -- ${(f)\"$(" + option.candidates() + " 2>/dev/null)\"}}";
  if (is_file(option)) return "_files";
  return option.type() == "DIR" ? "_files -/" : " ";
}

std::string zsh_argument(const Option& option) {
  if (option.is_positional())
    return " \\\n        " + in_quotes(":" + zsh_text(option.name()) + ":" + zsh_values(option));
  std::string text;
  for (const std::string& name : {option.short_name(), option.long_name()}) {
    if (name.empty()) continue;
    std::string spec = name;
    if (!option.is_flag() && name == option.long_name()) spec += "=";
    spec += "[" + zsh_text(option.description()) + "]";
    if (!option.is_flag()) spec += ":" + zsh_text(option.type()) + ":" + zsh_values(option);
    text += " \\\n        " + in_quotes(spec);
  }
  return text;
}

std::string zsh_arguments(const Command& command) {
  std::string text = "_arguments -s '(-h --help)'{-h,--help}'[Print help and exit]'";
  for (const auto& option : command.options())
    if (!option->is_hidden()) text += zsh_argument(*option);
  return command.takes_rest() ? text + " \\\n        '*::command:_normal'" : text;
}

std::string zsh_completion(const Command& program) {
  const std::string function = "_" + program.name();
  std::string text = "#compdef " + program.name() + "\n# Made by " + program.name() + " --completion zsh.\n" +
                     function +
                     "() {\n"
                     "  local curcontext=$curcontext state line\n"
                     "  typeset -A opt_args\n"
                     "  local -a commands\n"
                     "  commands=(\n";
  for (const auto& command : program.subcommands())
    text += "    " + in_quotes(command->name() + ":" + zsh_text(command->description())) + "\n";
  text += "  )\n  _arguments -C '(-h --help)'{-h,--help}'[Print help and exit]'";
  for (const auto& option : program.options())
    if (!option->is_hidden()) text += zsh_argument(*option);
  text +=
      " \\\n    '1:command:->command' '*::argument:->argument'\n"
      "  case $state in\n"
      "    command) _describe command commands ;;\n"
      "    argument) case $line[1] in\n";
  for (const auto& command : program.subcommands())
    text += "      " + command->name() + ") " + zsh_arguments(*command) + " ;;\n";
  return text + "    esac ;;\n  esac\n}\n" + function + " \"$@\"\n";
}

}  // namespace

std::string completion(const Command& program, const std::string& shell) {
  return shell == "bash" ? bash_completion(program) : zsh_completion(program);
}

}  // namespace command_line
