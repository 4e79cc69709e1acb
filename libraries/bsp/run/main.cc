// bsprun: starts the processes of a BSP program as one job, watches them, and ends all when one fails.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "libraries/bsp/run/hosts.h"
#include "libraries/bsp/run/local.h"
#include "shadowib/command_line/command_line.h"

namespace shadowib::bsprun {
namespace {

constexpr char kExamples[] =
    "Examples:\n"
    "  bsprun -n 4 ./lu 1000                    four processes here\n"
    "  bsprun --hosts a:2,b:2 ./lu 1000         two on each host, which share this directory\n"
    "  bsprun -n 4 --interval 60 ./lu 1000      a checkpoint at the first sync after each minute\n"
    "  bsprun -n 4 --job lu --supervise ./lu    the same line starts it, and restarts it after a failure\n"
    "  bsprun --from lu.0007                    from a set on\n"
    "  bsprun --portable -n 4 ./lu 1000         a program of shadowib-cc, whose sets any architecture restarts\n"
    "  bsprun --portable --supervise --job lu --hosts a:2,b:2 --program ./lu.aarch64 ./lu 1000\n"
    "                                           each host runs the program for its architecture\n"
    "  shadowib checkpoint lu-1234              a checkpoint now\n\n"
    "The exit code is the program's. 128+N: a process was ended by signal N. 123: a host was lost. 124: the job was\n"
    "aborted. 125: bsprun failed. 126, 127: the program cannot be run, or is not there.\n";

int complain(const std::string& text, int code) {
  std::fprintf(stderr, "bsprun: %s\n", text.c_str());
  return code;
}

// So large that no two runs have the same.
bool new_epoch(std::string* epoch) {
  std::uint64_t number = 0;
  const int fd = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  const bool read = fd >= 0 && ::read(fd, &number, sizeof(number)) == sizeof(number);
  if (fd >= 0) ::close(fd);
  char text[20];
  std::snprintf(text, sizeof(text), "%016" PRIx64, number);
  *epoch = text;
  return read;
}

// A core of this process would tell nothing.
void end_by(int signal) {
  std::fflush(nullptr);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::signal(signal, SIG_DFL);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_UNBLOCK, &all, nullptr);
  ::raise(signal);
}

// `shadowib` does the rest, in this process's place.
int hand_over(std::vector<std::string> words) {
  words.insert(words.begin(), shadowib_command());
  return execute(std::move(words));
}

int supervise(const Options& options) {
  // No checkpoint before all have joined.
  ::setenv("SHADOWIB_PROCESSES", std::to_string(options.processes).c_str(), 1);
  std::error_code error;
  return hand_over(supervise_words(options, std::filesystem::read_symlink("/proc/self/exe", error).string()));
}

int run(Options& options) {
  if (const std::string why = contradiction(options); !why.empty()) return complain(why, kUsage);
  if (!options.from.empty()) return hand_over(restart_words(options));
  std::vector<Host> hosts;
  if (!options.hosts.empty())
    if (const std::string why = parse_hosts(options.hosts, &hosts); !why.empty()) return complain(why, kUsage);
  for (const Host& host : hosts)
    if (!options.portable && !host.architecture.empty())
      return complain("--hosts " + host.name + ":" + host.architecture +
                          ": only programs of --portable run on several architectures",
                      kUsage);
  if (options.processes == 0) {
    for (const Host& host : hosts) options.processes += host.slots;
    if (hosts.empty()) options.processes = 1;
    if (options.processes > kMostProcesses)
      return complain("the hosts have " + std::to_string(options.processes) + " slots; a job has at most " +
                          std::to_string(kMostProcesses) + " processes: give fewer slots, or -n P",
                      kUsage);
  }
  if (options.supervise) return supervise(options);
  // Those that a supervisor has found alive.
  if (const char* alive = std::getenv("SHADOWIB_HOSTS");
      hosts.empty() && !options.is_share() && alive != nullptr && *alive != '\0') {
    if (const std::string why = parse_hosts(alive, &hosts); !why.empty()) return complain(why, kUsage);
    hosts = with_room(std::move(hosts), options.processes);
  }
  if (options.job.empty()) options.job = name_job(options.program[0], ::getpid());
  if (options.end_descriptor >= 0) ::fcntl(options.end_descriptor, F_SETFD, FD_CLOEXEC);
  const int signals = catch_signals();
  if (signals < 0) return complain("cannot watch for signals", kUsage);
  if (options.is_share()) return run_share(options, signals);
  if (!new_epoch(&options.epoch)) return complain("cannot read /dev/urandom", kUsage);
  if (options.portable && !make_meeting(options)) return complain("cannot make the job's directory", kUsage);
  Outcome outcome;
  std::string host;
  if (hosts.empty()) {
    options.count = options.processes;
    outcome = run_here(options, {signals, -1});
  } else {
    std::string why;
    const std::vector<Share> shares = distribute(hosts, options.processes, &why);
    if (shares.empty()) return complain(why, kUsage);
    outcome = run_on_hosts(options, shares, signals, &host);
  }
  forget_ends(options);
  if (const std::string text = message(outcome, host); !text.empty()) complain(text, 0);
  const std::string json = json_of(options.job, outcome, host) + "\n";
  if (options.json) std::fputs(json.c_str(), stdout);
  if (options.end_descriptor >= 0) (void)!::write(options.end_descriptor, json.data(), json.size());
  if (options.is_supervised && outcome.kind == Outcome::Kind::kSignal) end_by(outcome.value);
  return exit_code(outcome);
}

}  // namespace
}  // namespace shadowib::bsprun

int main(int argc, char** argv) {
  using namespace shadowib::bsprun;
  Options options;
  command_line::Command program("bsprun", "Starts a BSP program: P processes of one job.");
  program.add_option("-n,--processes", options.processes, "how many; else all slots of --hosts, else 1")
      ->type_name("P")
      ->between(1, kMostProcesses, "processes");
  program
      .add_option("--hosts", options.hosts,
                  "where: HOST:SLOTS,... started by $SHADOWIB_RSH, else ssh. With\n--portable HOST:SLOTS:ARCH if "
                  "it runs programs of ARCH by --runner")
      ->type_name("LIST");
  program.add_option("--job", options.job, "the job's name; else the program's and a number")->type_name("J");
  program.add_option("--dir", options.directory, "where the job and its sets are")->type_name("DIR");
  program.add_option("--backend", options.backend, "auto, ib2tcp or verbs, as in shadowib run")
      ->one_of({"auto", "ib2tcp", "verbs"})
      ->type_name("B");
  program.add_option("--interval", options.interval, "seconds between checkpoints, taken at the end of a superstep")
      ->between(0.001, 1e8, "seconds")
      ->type_name("S");
  program.add_option("--keep", options.keep, "with --interval or --supervise: keep the N newest sets")
      ->between(1, 1e6, "sets")
      ->type_name("N");
  program.add_flag("--supervise", options.supervise, "restart the job from its newest set until it has a result");
  program.add_option("--from", options.from, "start again from a set, as shadowib restart does")
      ->not_empty("a set")
      ->type_name("SET");
  program.add_flag("--portable", options.portable,
                   "PROGRAM was compiled by CC=shadowib-cc bspcc: its sets restart on\nother architectures");
  program
      .add_option("--program", options.programs,
                  "with --portable or --from: the program, instead of PROGRAM; if\nrepeated, process i runs number i "
                  "modulo their count. With --hosts\neach host runs those for its architecture, else PROGRAM")
      ->not_empty("a program")
      ->type_name("FILE");
  program
      .add_option("--runner", options.runners,
                  "with --portable or --from: runs programs of another architecture,\nas s390x='qemu-s390x -L "
                  "/usr/s390x-linux-gnu'; may be repeated")
      ->not_empty("a runner")
      ->type_name("A=CMD");
  program.add_option("--images", options.images, "")->hidden();
  program.add_flag("--json", options.json, "at the end print an object with job and exit_code");
  program.add_flag("--supervised", options.is_supervised, "")->hidden();
  program.add_option("--tell-end", options.end_descriptor, "")->hidden();
  program.add_option("--lease", options.lease_s, "")->hidden();
  program.add_option("--architecture", options.architecture, "")->hidden();
  program.add_option("--share", options.share_token, "")->hidden();
  program.add_option("--epoch", options.epoch, "")->hidden();
  program.add_option("--first", options.first, "")->hidden();
  program.add_option("--count", options.count, "")->hidden();
  program.footer(kExamples);
  program.usage_code(kUsage);
  program.take_rest(options.program, " PROGRAM [ARGUMENT]...");
  int code = 0;
  if (!command_line::parse(program, SHADOWIB_VERSION, argc, argv, &code)) return code;
  return run(options);
}
