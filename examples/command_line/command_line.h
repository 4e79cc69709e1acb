// The command line of a program that is one command.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace command_line {

// Parses argv, --version included. Prints help, the version or a complaint and returns false, with *exit_code 0, or 2
// for a wrong option, if the program is to end.
inline bool parse(CLI::App& app, const std::string& name, int argc, char** argv, int* exit_code) {
  app.set_version_flag("--version", name + " " + SHADOWIB_VERSION);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    *exit_code = app.exit(e) == 0 ? 0 : 2;
    return false;
  }
  return true;
}

}  // namespace command_line
