// The command `shadowib`: one file per sub-command, this one puts them together.
#include <cstdio>
#include <cstring>

#include "hooks/raw/needed_calls.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/inherited_signals.h"
#include "shadowib/cli/probe_calls.h"

namespace {

constexpr char kAbout[] =
    "Checkpoints unmodified RDMA programs (InfiniBand, RoCE verbs) to files and restarts them.\n\n"
    "  shadowib run --job demo -- ./app        start a program, or several, as job demo\n"
    "  shadowib checkpoint demo                save them while they run; --kill ends them afterwards\n"
    "  shadowib restart demo.0001              start them again from the set\n";

constexpr char kMore[] =
    "Every command takes --dir, --exchange and --json, and explains itself with --help.\n"
    "Exit codes: 0 done, 1 internal error, 2 wrong option or argument, 3 no such job, set or member, 4 cannot be\n"
    "captured or restored, 5 damaged image or manifest, 6 file system or network error, 7 time ran out, 8 aborted\n"
    "(the job runs on), 9 the kernel denies a needed call, 10 other format or protocol version, 11 busy. `run`\n"
    "exits with its program's code, or 125, 126, 127 if it could not start it; `restart` with 20 if a process\n"
    "failed, and 21 if a host was lost; `supervise` and `tend` with 70 when they give up, and with 75 when the job\n"
    "was saved and ended.\n"
    "See shadowib(1), and shadowib-environment(7) for the variables.\n";

}  // namespace

int main(int argc, char** argv) {
  using namespace shadowib::cli;
  if (argc == 2 && std::strcmp(argv[1], shadowib::kProbeOption) == 0) return probe_calls();
  note_inherited_signals();
  Command program("shadowib", kAbout);
  program.footer(kMore);
  std::string shell;
  program.add_option("--completion", shell, "Print the completion script for a shell")
      ->one_of({"bash", "zsh"})
      ->hidden();
  program.callback([&program, &shell] {
    std::fputs(command_line::completion(program, shell).c_str(), stdout);
    return 0;
  });
  add_run(program);
  add_supervise(program);
  add_tend(program);
  add_checkpoint(program);
  add_restart(program);
  add_status(program);
  add_line(program);
  add_history(program);
  add_report(program);
  add_list(program);
  add_inspect(program);
  add_verify(program);
  add_gc(program);
  add_rebuild(program);
  add_flush(program);
  add_keeper(program);
  add_worker(program);
  add_doctor(program);
  return command_line::run(program, SHADOWIB_VERSION, argc, argv);
}
