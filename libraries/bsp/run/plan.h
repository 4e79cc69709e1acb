// The options of bsprun, and which process runs where.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowib/command_line/hosts.h"

namespace shadowib::bsprun {

// As many as the library can connect (greeting.h).
inline constexpr int kMostProcesses = 960;

using command_line::Host;
using command_line::in_quotes;
using command_line::parse_hosts;

struct Options {
  int processes = 0;  // 0: as many as the hosts have slots, else 1
  std::string job, directory, backend, hosts, interval;
  std::string from;   // a set to restart, instead of a program
  unsigned keep = 0;  // so many newest sets; 0: all
  bool supervise = false, json = false;
  bool is_supervised = false;  // started by a supervisor, to whom an exit is a result, and an end by a signal is none
  bool portable = false;
  std::vector<std::string> programs;  // of portable processes: process i runs number i modulo their count, of those
                                      // for its host
  std::vector<std::string> runners;   // ARCHITECTURE=COMMAND, for programs of other architectures
  std::string images;                 // a portable set's directory: processes begin with its images
  std::vector<std::string> program;
  // A restart only: a descriptor that gets the object of --json, and how long shares live without a word from here.
  int end_descriptor = -1;
  double lease_s = 0;
  // A share only: the processes of one host, started by bsprun on another.
  std::string share_token, epoch;
  std::string architecture;        // of the programs that it runs; "": its own
  std::vector<std::string> among;  // programs of the job, of which those for this host were chosen
  int first = 0, count = 0;

  bool is_share() const { return !share_token.empty(); }
};

// Exit codes, as bsprun(1) has them.
inline constexpr int kUsage = 125, kAborted = 124, kLostHost = 123;

// A host's processes: first, first + 1, ...
struct Share {
  std::string host;
  int first = 0, count = 0;
  std::string architecture;  // of portable programs there; "": its own
};

// Fills hosts in their order. Empty and *why if they have too few slots.
std::vector<Share> distribute(const std::vector<Host>& hosts, int processes, std::string* why);

// With more slots, one by one, until there is one for each process.
std::vector<Host> with_room(std::vector<Host> hosts, int processes);

// How a group of processes came to its end.
struct Outcome {
  enum class Kind { kExit, kSignal, kLost } kind = Kind::kExit;
  int process = -1;  // whose
  int value = 0;     // exit code, or signal
};

// The exit code of bsprun for it.
int exit_code(const Outcome& outcome);
// True if the other processes are to end, too: a signal, a lost host, an abort, or a program that could not be run.
bool ends_all(const Outcome& outcome);
// The line that tells it, or "" if the process has told it or there is nothing to tell.
std::string message(const Outcome& outcome, const std::string& host);

// A share's last words on its output, and back. A program cannot write them by chance: it does not know the token.
std::string last_words(const std::string& token, const Outcome& outcome);
bool read_last_words(const std::string& token, const std::string& text, Outcome* outcome);

// True if processes on other hosts get that variable, as those here do. Not: a process's own place, which a share
// sets itself, and SHADOWIB_REDIS_PASSWORD, which would stand in a command line.
bool is_forwarded(const std::string& name);

// A job's name for a run without --job: the program's, as far as a name can have it, and a number.
std::string name_job(const std::string& program, int number);

// Empty if these options go together; else what is wrong, for the user.
std::string contradiction(const Options& options);
// The words behind `shadowib` for a job that is kept alive, whose first start is `bsprun` without that option; and
// for one that starts again from a set.
std::vector<std::string> supervise_words(const Options& options, const std::string& bsprun);
std::vector<std::string> restart_words(const Options& options);
// bsprun for the processes of one host.
std::vector<std::string> share_words(const Options& options, const Share& share, const std::string& bsprun,
                                     const std::string& token);
// Leaves those programs that are for a share's host, whose bsprun is for `own`. Empty, or why there is none.
std::string choose_programs(const std::string& own, Options* options);
// `shadowib run` for a portable process.
std::vector<std::string> portable_words(const Options& options, int process);
// `shadowib checkpoint` of a portable job.
std::vector<std::string> checkpoint_words(const Options& options);
// The object that --json prints.
std::string json_of(const std::string& job, const Outcome& outcome, const std::string& host);

}  // namespace shadowib::bsprun
