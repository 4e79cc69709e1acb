#include "libraries/bsp/run/plan.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "shadowib/command_line/architecture.h"

namespace shadowib::bsprun {
namespace {

constexpr char kMark = '\x1e';

}  // namespace

std::vector<Share> distribute(const std::vector<Host>& hosts, int processes, std::string* why) {
  std::vector<Share> shares;
  int next = 0;
  for (const Host& host : hosts) {
    const int count = std::min(host.slots, processes - next);
    if (count > 0) shares.push_back({host.name, next, count, host.architecture});
    next += std::max(count, 0);
  }
  if (next < processes) {
    *why = "the hosts have " + std::to_string(next) + " slots for " + std::to_string(processes) + " processes";
    return {};
  }
  return shares;
}

std::vector<Host> with_room(std::vector<Host> hosts, int processes) {
  int slots = 0;
  for (const Host& host : hosts) slots += host.slots;
  for (std::size_t next = 0; !hosts.empty() && slots < processes; ++slots) ++hosts[next++ % hosts.size()].slots;
  return hosts;
}

int exit_code(const Outcome& outcome) {
  switch (outcome.kind) {
    case Outcome::Kind::kExit:
      return outcome.value;
    case Outcome::Kind::kSignal:
      return 128 + outcome.value;
    case Outcome::Kind::kLost:
      break;
  }
  return kLostHost;
}

// 124 is the library's; the others are those of shadowib run that has started no program.
bool ends_all(const Outcome& outcome) {
  return outcome.kind != Outcome::Kind::kExit || (outcome.value >= kAborted && outcome.value <= 127);
}

std::string message(const Outcome& outcome, const std::string& host) {
  const std::string at = host.empty() ? "" : " on " + host;
  if (outcome.kind == Outcome::Kind::kLost) return "lost host " + host + "; the job ends";
  // A process that aborts has said why.
  if (outcome.kind != Outcome::Kind::kSignal || outcome.value == SIGABRT) return {};
  return "process " + std::to_string(outcome.process) + at + " was ended by signal " + std::to_string(outcome.value) +
         " (" + ::strsignal(outcome.value) + "); the job ends";
}

std::string last_words(const std::string& token, const Outcome& outcome) {
  const char* kind = outcome.kind == Outcome::Kind::kSignal ? "signal" : "exit";
  return kMark + token + " " + kind + " " + std::to_string(outcome.process) + " " + std::to_string(outcome.value) +
         "\n";
}

bool read_last_words(const std::string& token, const std::string& text, Outcome* outcome) {
  char kind[16];
  int process = 0, value = 0;
  const std::string head = kMark + token + " ";
  if (text.compare(0, head.size(), head) != 0) return false;
  if (std::sscanf(text.c_str() + head.size(), "%15s %d %d", kind, &process, &value) != 3) return false;
  *outcome = {std::strcmp(kind, "signal") == 0 ? Outcome::Kind::kSignal : Outcome::Kind::kExit, process, value};
  return true;
}

// 1 to 64 of A-Za-z0-9._-, the first a letter, a digit or _.
std::string name_job(const std::string& program, int number) {
  constexpr std::size_t kMost = 40;
  std::string name = program.substr(program.rfind('/') + 1, kMost);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && std::strchr("._-", c) == nullptr) c = '_';
  if (!name.empty() && !std::isalnum(static_cast<unsigned char>(name[0]))) name[0] = '_';
  return name + "-" + std::to_string(number);
}

std::string contradiction(const Options& options) {
  if (!options.from.empty()) {
    if (!options.program.empty())
      return "--from SET takes the program from the set; leave " + options.program[0] + " out";
    if (options.portable) return "--from SET knows whether its images are portable; leave --portable out";
    if (options.supervise || options.processes != 0 || !options.interval.empty() || options.keep != 0 ||
        !options.job.empty())
      return "--from SET goes with --hosts, --dir, --backend, --program, --runner and --json only: the set has the "
             "rest";
    return {};
  }
  if (!options.portable && (!options.programs.empty() || !options.runners.empty()))
    return "--program and --runner go with --portable or --from only";
  if (options.portable && !options.backend.empty())
    return "--portable does not go with --backend: its processes meet by sockets";
  if (options.program.empty()) return "no program to run; see bsprun --help";
  if (options.keep != 0 && options.interval.empty() && !options.supervise)
    return "--keep N goes with --interval S or --supervise: without them no set is made";
  if (!options.supervise) return {};
  if (options.job.empty()) return "--supervise needs --job J: by it the same line finds the sets again";
  return {};
}

namespace {

void add_directory_and_json(const Options& options, std::vector<std::string>* words) {
  if (!options.directory.empty()) words->insert(words->end(), {"--dir", options.directory});
  if (options.json) words->push_back("--json");
}

void add_programs(const Options& options, std::vector<std::string>* words) {
  for (const std::string& program : options.programs) words->insert(words->end(), {"--program", program});
  for (const std::string& runner : options.runners) words->insert(words->end(), {"--runner", runner});
}

void add_portable(const Options& options, std::vector<std::string>* words) {
  if (!options.portable) return;
  words->push_back("--portable");
  if (!options.images.empty()) words->insert(words->end(), {"--images", options.images});
  add_programs(options, words);
}

}  // namespace

std::vector<std::string> share_words(const Options& options, const Share& share, const std::string& bsprun,
                                     const std::string& token) {
  std::vector<std::string> words{bsprun,
                                 "--share",
                                 token,
                                 "--epoch",
                                 options.epoch,
                                 "--first",
                                 std::to_string(share.first),
                                 "--count",
                                 std::to_string(share.count),
                                 "-n",
                                 std::to_string(options.processes),
                                 "--job",
                                 options.job};
  if (!options.directory.empty()) words.insert(words.end(), {"--dir", options.directory});
  if (!options.backend.empty()) words.insert(words.end(), {"--backend", options.backend});
  if (!options.interval.empty()) words.insert(words.end(), {"--interval", options.interval});
  if (options.keep != 0) words.insert(words.end(), {"--keep", std::to_string(options.keep)});
  if (options.lease_s > 0) words.insert(words.end(), {"--lease", std::to_string(options.lease_s)});
  if (!share.architecture.empty()) words.insert(words.end(), {"--architecture", share.architecture});
  add_portable(options, &words);
  words.push_back("--");
  words.insert(words.end(), options.program.begin(), options.program.end());
  return words;
}

std::vector<std::string> supervise_words(const Options& options, const std::string& bsprun) {
  std::vector<std::string> words{"supervise", "--job", options.job};
  if (!options.interval.empty()) words.insert(words.end(), {"--interval", options.interval});
  if (options.keep != 0) words.insert(words.end(), {"--keep", std::to_string(options.keep)});
  if (!options.hosts.empty()) words.insert(words.end(), {"--hosts", options.hosts});
  // Processes that have not joined the job are told of by bsprun alone.
  words.insert(words.end(), {"--retry-on", std::to_string(kLostHost)});
  add_directory_and_json(options, &words);
  words.insert(words.end(),
               {"--", bsprun, "--supervised", "-n", std::to_string(options.processes), "--job", options.job});
  if (!options.directory.empty()) words.insert(words.end(), {"--dir", options.directory});
  if (!options.backend.empty()) words.insert(words.end(), {"--backend", options.backend});
  add_portable(options, &words);
  words.push_back("--");
  words.insert(words.end(), options.program.begin(), options.program.end());
  return words;
}

std::vector<std::string> restart_words(const Options& options) {
  std::vector<std::string> words{"restart"};
  if (!options.backend.empty()) words.insert(words.end(), {"--backend", options.backend});
  if (!options.hosts.empty()) words.insert(words.end(), {"--hosts", options.hosts});
  add_programs(options, &words);
  add_directory_and_json(options, &words);
  words.push_back(options.from);
  return words;
}

std::string choose_programs(const std::string& own, Options* options) {
  if (options->programs.empty() && options->architecture.empty()) return {};
  const std::string wanted = options->architecture.empty() ? own : options->architecture;
  options->among = options->programs;
  if (std::find(options->among.begin(), options->among.end(), options->program[0]) == options->among.end())
    options->among.push_back(options->program[0]);
  const auto is_wanted = [&wanted](const std::string& name) { return command_line::architecture_of(name) == wanted; };
  std::vector<std::string> chosen;
  std::copy_if(options->programs.begin(), options->programs.end(), std::back_inserter(chosen), is_wanted);
  if (chosen.empty() && is_wanted(options->program[0])) chosen.push_back(options->program[0]);
  options->programs = chosen;
  if (!chosen.empty()) return {};
  return "it runs programs of " + wanted +
         ", and there is none: name one by --program, or write HOST:SLOTS:ARCH if " +
         "it runs those of ARCH by --runner";
}

std::vector<std::string> portable_words(const Options& options, int process) {
  const std::string number = std::to_string(process);
  std::vector<std::string> words{"run", "--portable", "--job", options.job, "--member", number};
  if (!options.directory.empty()) words.insert(words.end(), {"--dir", options.directory});
  if (!options.images.empty()) words.insert(words.end(), {"--image", options.images + "/member-" + number + ".psi"});
  for (const std::string& runner : options.runners) words.insert(words.end(), {"--runner", runner});
  // Another host may run another one at a restart.
  for (const std::string& program : options.among) words.insert(words.end(), {"--among", program});
  words.push_back("--");
  words.push_back(options.programs.empty()
                      ? options.program[0]
                      : options.programs[static_cast<std::size_t>(process) % options.programs.size()]);
  words.insert(words.end(), options.program.begin() + 1, options.program.end());
  return words;
}

std::vector<std::string> checkpoint_words(const Options& options) {
  // A superstep may take as long as it is between two checkpoints.
  constexpr double kLeastS = 60, kMostS = 86400;
  const double seconds = std::clamp(std::atof(options.interval.c_str()), kLeastS, kMostS);
  std::vector<std::string> words{"checkpoint", options.job, "--timeout", std::to_string(std::lround(seconds))};
  if (!options.directory.empty()) words.insert(words.end(), {"--dir", options.directory});
  if (options.keep != 0) words.insert(words.end(), {"--keep", std::to_string(options.keep)});
  return words;
}

std::string json_of(const std::string& job, const Outcome& outcome, const std::string& host) {
  const auto text = [](const std::string& word) {
    std::string quoted = "\"";
    for (const char c : word) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned char>(c));
      quoted += c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20 ? code : std::string(1, c);
    }
    return quoted + "\"";
  };
  std::string json = "{\"job\": " + text(job) + ", \"exit_code\": " + std::to_string(exit_code(outcome));
  if (outcome.process >= 0) json += ", \"process\": " + std::to_string(outcome.process);
  if (outcome.kind == Outcome::Kind::kSignal) json += ", \"signal\": " + std::to_string(outcome.value);
  if (!host.empty()) json += ", \"host\": " + text(host);
  return json + "}";
}

bool is_forwarded(const std::string& name) {
  if (name.compare(0, 9, "SHADOWIB_") != 0 || name.find("PASSWORD") != std::string::npos) return false;
  static constexpr const char* kOwn[] = {"SHADOWIB_BSP_PROCESS", "SHADOWIB_BSP_PROCESSES", "SHADOWIB_BSP_HERE",
                                         "SHADOWIB_BSP_EPOCH",   "SHADOWIB_BSP_INTERVAL",  "SHADOWIB_BSP_ENDS"};
  return std::find(std::begin(kOwn), std::end(kOwn), name) == std::end(kOwn);
}

}  // namespace shadowib::bsprun
