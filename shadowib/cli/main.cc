// The command `shadowib`: one file per sub-command, this one puts them together.
#include <cstdio>
#include <cstring>

#include "shadowib/cli/common.h"

namespace {

constexpr char kAbout[] =
    "Checkpoints unmodified RDMA programs (InfiniBand, RoCE verbs) to files and restarts them.\n\n"
    "  shadowib run --job demo -- ./app        start a program, or several, as job demo\n"
    "  shadowib checkpoint demo                save them while they run; --kill ends them afterwards\n"
    "  shadowib restart demo.0001              start them again from the set\n";

constexpr char kMore[] =
    "Every command takes --dir, --exchange and --json, and explains itself with --help.\n"
    "Exit codes: 0 done, 1 internal error, 2 wrong option or argument, 3 no such job, set or member, 4 cannot be\n"
    "captured or restored, 5 damaged image or manifest, 6 file system or network error, 7 time ran out, 8 aborted "
    "(the\n"
    "job runs on), 9 the kernel denies a needed call, 10 other format or protocol version, 11 busy. `run` exits "
    "with\n"
    "its program's code, or 125, 126, 127 if it could not start it; `restart` with 20 if a process failed.\n"
    "See shadowib(1), and shadowib-environment(7) for the variables.\n";

// CLI11 does not know that `run` takes another program's command line.
class Formatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, name);
    if (app->get_name() != "run") return usage;
    return usage.substr(0, usage.find_last_not_of('\n') + 1) + " -- CMD [ARGUMENT...]\n";
  }
};

// CMD's own options are nobody's business but its: everything after the first "--" of `run` is kept from the parser.
int split_command(int argc, char** argv, shadowib::cli::Arguments* after) {
  if (argc < 2 || std::strcmp(argv[1], "run") != 0) return argc;
  for (int i = 2; i < argc; ++i)
    if (std::strcmp(argv[i], "--") == 0) {
      after->assign(argv + i + 1, argv + argc);
      return i;
    }
  return argc;
}

int usage_error(const CLI::App& app, const char* first, const CLI::ParseError& error) {
  if (app.get_subcommands().empty() && first != nullptr && first[0] != '-') {
    std::fprintf(stderr, "shadowib: there is no command '%s'; see shadowib --help\n", first);
    return static_cast<int>(shadowib::Code::kUsage);
  }
  std::string command = "shadowib";
  for (const CLI::App* used : app.get_subcommands()) command += " " + used->get_name();
  std::string what = error.what();
  for (char& c : what)
    if (c == '\n') c = ' ';
  std::fprintf(stderr, "shadowib: %s; see %s --help\n", what.c_str(), command.c_str());
  return command == "shadowib run" ? shadowib::cli::kRunFailed : static_cast<int>(shadowib::Code::kUsage);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace shadowib::cli;
  Arguments command;
  argc = split_command(argc, argv, &command);
  CLI::App app(kAbout, "shadowib");
  auto formatter = std::make_shared<Formatter>();
  formatter->column_width(34);
  app.formatter(formatter);
  app.set_version_flag("--version", "shadowib " SHADOWIB_VERSION);
  app.require_subcommand(1);
  app.footer(kMore);
  int exit_code = 0;
  add_run(app, command, &exit_code);
  add_checkpoint(app, &exit_code);
  add_restart(app, &exit_code);
  add_status(app, &exit_code);
  add_list(app, &exit_code);
  add_inspect(app, &exit_code);
  add_verify(app, &exit_code);
  add_gc(app, &exit_code);
  add_doctor(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, argc > 1 ? argv[1] : nullptr, error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shadowib: internal error: %s\n", error.what());
    return static_cast<int>(shadowib::Code::kInternal);
  }
  return exit_code;
}
