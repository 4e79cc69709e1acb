// shadowib restart: starts a set's processes again on this machine, or a share of them, and waits for them.
// restart_kinds.h has the kinds of restart.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "hooks/imager/set/manifest.h"
#include "shadowib/cli/clc_sets.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/end_on_request.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/far_fetch.h"
#include "shadowib/cli/host_list.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/launched_exchange.h"
#include "shadowib/cli/launched_restart.h"
#include "shadowib/cli/network.h"
#include "shadowib/cli/recover.h"
#include "shadowib/cli/restart_hosts.h"
#include "shadowib/cli/restart_kinds.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace {

constexpr char kRestartExamples[] =
    "Examples:\n"
    "  shadowib restart demo                        the newest set of job demo\n"
    "  shadowib restart demo.0003                   a name as `shadowib list` shows it\n"
    "  shadowib restart ./shadowib-ckpt/sets/demo.0003 --backend ib2tcp\n"
    "  shadowib restart demo.0003 --members 0-3     on one machine, and --members 4-7 on another\n"
    "  shadowib restart scan --workers 16           a master of workers (shadowib worker), with another number of "
    "them\n"
    "  shadowib restart demo.0003 --files roll-back files as long as they were at the checkpoint\n"
    "  shadowib restart demo.0003 --hosts a:4,b:4   members spread over hosts, started by ssh\n"
    "  mpirun -np 8 shadowib restart demo.0003      members spread over the launcher's ranks, as srun's too\n"
    "  shadowib restart --job demo                  clusters that have failed, each from its own checkpoint\n"
    "  shadowib restart --job demo --cluster B      cluster B, dead or alive, while the others run on\n\n"
    "No process goes on before every byte of its image is checked. Signals sent to the command reach the processes.\n"
    "A line per process tells how it ended; the exit code is 0 if all exited 0, 20 if one of them did not.\n";

// "0,2-5": kUsage if it is no such list, or names a member that the set has not.
Status parse_members(const std::string& text, const SetManifest& manifest, std::set<std::uint32_t>* members) {
  const auto wrong = [&text](const char* why) {
    return Status::of(Code::kUsage, 0, "--members %.100s: %s; it is a list as 0,2-5", text.c_str(), why);
  };
  std::set<std::uint32_t> known;
  for (const SetMember& m : manifest.members) known.insert(m.index);
  if (text.ends_with(',')) return wrong("it ends with a comma");
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, ',');) {
    unsigned first = 0, last = 0;
    int used = 0;
    if (std::sscanf(part.c_str(), "%6u-%6u%n", &first, &last, &used) != 2 || used != static_cast<int>(part.size())) {
      if (std::sscanf(part.c_str(), "%6u%n", &first, &used) != 1 || used != static_cast<int>(part.size()))
        return wrong("no number, and no range");
      last = first;
    }
    if (last < first) return wrong("a range runs backwards");
    for (unsigned m = first; m <= last; ++m) {
      if (!known.contains(m)) return wrong(("the set has no member " + std::to_string(m)).c_str());
      members->insert(m);
    }
  }
  return members->empty() ? wrong("it is empty") : Status();
}

// A set that this directory has no more may be in the far place.
Status find_set(RestartArguments* arguments, std::string* path) {
  Common& common = arguments->common;
  std::string job = arguments->set;
  std::uint32_t number = 0;
  SetManifest manifest;
  const bool is_name = parse_set_name(std::filesystem::path(arguments->set).filename(), &job, &number);
  Status status = choose_set(&common, arguments->set, path);
  if (status.ok()) status = read_manifest(*path, &manifest);
  if (status.code() != Code::kNotFound || (!is_name && !valid_job_name(job))) return status;
  const Status far = fetch_set(common.directory, job, number, arguments->far, path);
  return far.error() == ESRCH ? status : far;  // no far place is known
}

int restart_launched(const RestartArguments& arguments, const SetManifest& manifest, const std::string& exchange,
                     const Launched& launched) {
  const Common& common = arguments.common;
  LaunchedRestart group(launched, job_paths(common.directory, manifest.job).top);
  if (Status s = group.gather(exchange, manifest.job, arguments.wait_s); !s.ok()) return fail(common, s);
  int exit_code = 0;
  if (!group.leads()) {
    const Status followed = group.follow(&exit_code);
    return followed.ok() ? exit_code : fail(common, followed);
  }
  Companies companies;
  std::set<std::uint32_t> members;
  if (const Status s = find_companies(manifest, &companies); s.ok())
    members = group.members(companies);
  else
    exit_code = fail(common, s);
  if (!members.empty()) exit_code = restart_members(arguments, manifest, exchange, members);
  group.told(exit_code);
  return exit_code;
}

// Refused for good: lazy_memory_test has what the kernel does to such memory.
Status refuse_lazy() {
  return Status(
      Code::kUsage, EOPNOTSUPP,
      "--lazy is not supported: without rights over the machine, memory that comes later breaks forks, system "
      "calls and dropped pages of a program; leave out --lazy, and all memory is read and checked once, before "
      "the program goes on");
}

// Options that each cluster's set is restarted with.
std::vector<std::string> words_for_clusters(const RestartArguments& arguments) {
  const Common& common = arguments.common;
  std::vector<std::string> words{"--dir",         common.directory, "--files",
                                 arguments.files, "--timeout",      std::to_string(arguments.timeout_s)};
  if (!common.exchange.empty()) words.insert(words.end(), {"--exchange", common.exchange});
  if (!arguments.backend.empty()) words.insert(words.end(), {"--backend", arguments.backend});
  if (!arguments.network.empty()) words.insert(words.end(), {"--network", arguments.network});
  if (!arguments.shell.empty()) words.insert(words.end(), {"--rsh", arguments.shell});
  if (arguments.lease_s > 0) words.insert(words.end(), {"--lease", std::to_string(arguments.lease_s)});
  return words;
}

int restart_clusters(const RestartArguments& arguments) {
  const Common& common = arguments.common;
  if (!arguments.set.empty() || arguments.members || arguments.workers >= 0 || arguments.far.given())
    return fail(common, Status(Code::kUsage, EINVAL,
                               "--job names the clusters' own sets: leave out SET, --members, --workers and options "
                               "of far places"));
  std::vector<command_line::Host> hosts;
  if (!arguments.hosts.empty()) {
    if (common.json) return fail(common, Status(Code::kUsage, EINVAL, "--hosts does not go with --json"));
    if (const Status s = parse_host_list(arguments.hosts, &hosts); !s.ok()) return fail(common, s);
  }
  return recover(common, {.job = arguments.job,
                          .clusters = arguments.clusters,
                          .fenced = arguments.fenced,
                          .timeout_s = arguments.timeout_s,
                          .patience_s = arguments.patience_s,
                          .backend = wanted_backend(arguments),
                          .verbs_library = verbs_library(),
                          .words = words_for_clusters(arguments),
                          .hosts = std::move(hosts)});
}

int restart(RestartArguments& arguments) {
  if (arguments.held) hold_by_input(arguments.lease_s);
  Common& common = arguments.common;
  if (arguments.lazy) return fail(common, refuse_lazy());
  std::string path;
  SetManifest manifest;
  std::set<std::uint32_t> members;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (std::string variable; arguments.backend.empty())
    if (Status s = backend_variable(&variable); !s.ok()) return fail(common, s);
  if (arguments.network.empty()) arguments.network = environment("IB2TCP_NETWORK");
  if (Status s = check_network(arguments.network); !s.ok()) return fail(common, s);
  if (!arguments.job.empty()) return restart_clusters(arguments);
  if (arguments.set.empty() || !arguments.clusters.empty() || arguments.fenced || arguments.patience_s > 0)
    return fail(common,
                Status(Code::kUsage, EINVAL,
                       arguments.set.empty() ? "which SET? Or, for clusters of a federation, --job J"
                                             : "--cluster, --fenced and --patience need --job J, and no SET"));
  if (Status s = find_set(&arguments, &path); !s.ok()) return fail(common, s);
  if (Status s = read_manifest(path, &manifest); !s.ok()) return fail(common, s);
  if (!arguments.in_recovery.empty()) {
    if (Status s = decode_part(arguments.in_recovery, &arguments.part); !s.ok()) return fail(common, s);
  } else if (Status s = judge_restart_of_clc(manifest); !s.ok()) {
    return fail(common, s);
  }
  if (!valid_job_name(manifest.job))
    return fail(common, Status::of(Code::kCorrupt, 0, "set %.200s names no valid job", path.c_str()));
  if (is_portable(manifest)) return restart_portable_set(arguments, std::move(manifest));
  if (!arguments.portable.programs.empty() || !arguments.portable.runners.empty())
    return fail(common, Status(Code::kUsage, 0, "--program and --runner are for sets of portable programs only"));
  if (arguments.part.number == 0) settle_end_on_request(common, manifest.job);
  if (!arguments.hosts.empty()) return restart_on_hosts(arguments, manifest);
  std::string exchange = unsettled_exchange(exchange_of(common, manifest.job));
  if (Status s = settle_exchange(job_paths(common.directory, manifest.job).password, &exchange); !s.ok())
    return fail(common, s);
  if (arguments.members) {
    if (Status s = parse_members(*arguments.members, manifest, &members); !s.ok()) return fail(common, s);
  } else if (arguments.part.number == 0) {
    Launched launched;
    bool found = false;
    if (Status s = find_launcher(&launched, &found); !s.ok()) return fail(common, s);
    if (found) return restart_launched(arguments, manifest, exchange, launched);
  }
  return restart_members(arguments, std::move(manifest), exchange, std::move(members));
}

}  // namespace

void add_restart(Command& program) {
  auto arguments = std::make_shared<RestartArguments>();
  Command* command = program.add_subcommand("restart", "Start the processes of a checkpoint set again");
  command
      ->add_option(
          "SET", arguments->set,
          "The set: its path, its name as `shadowib list` shows it, or a\njob, which stands for its newest set")
      ->completed_by(kSetNames)
      ->not_empty("a set");
  command
      ->add_option("--job", arguments->job,
                   "Instead of a SET: clusters of job J that have failed, each from\nits own checkpoint, while the "
                   "others run on")
      ->completed_by(kJobNames)
      ->not_empty("a job")
      ->type_name("J");
  command
      ->add_option("--cluster", arguments->clusters,
                   "With --job: these clusters, as B or A,B; what is left of them is\nended first")
      ->delimiter(',')
      ->not_empty("a cluster")
      ->type_name("LIST");
  command->add_flag("--fenced", arguments->fenced,
                    "With --job: members that do not end are lost for good, and a\nperson vouches for that");
  command
      ->add_option(
          "--patience", arguments->patience_s,
          "With --job: if a cluster takes nothing for S seconds of what\nothers send it again, they go back, "
          "too; default: they wait")
      ->between(0.1, 1e6, "seconds")
      ->type_name("S");
  command->add_option("--in-recovery", arguments->in_recovery, "")->hidden();
  command
      ->add_option("--backend", arguments->backend,
                   "What carries the verbs from now on: auto, verbs or ib2tcp;\ndefault $SHADOWIB_BACKEND, else auto")
      ->one_of({"auto", "verbs", "ib2tcp"})
      ->type_name("NAME");
  add_network(command, &arguments->network);
  command
      ->add_option(
          "--members", arguments->members,
          "Only these, as 0,2-5: other commands, on other machines\nthat share DIR, start the others; default all")
      ->type_name("LIST");
  command
      ->add_option("--hosts", arguments->hosts,
                   "Where: HOST:SLOTS,... or slurm. A remote shell starts each\nhost's members; all share DIR")
      ->not_empty("a list of hosts")
      ->type_name("LIST");
  command->add_option("--rsh", arguments->shell, "That remote shell; default $SHADOWIB_RSH, else ssh")
      ->not_empty("a command")
      ->type_name("CMD");
  command
      ->add_option("--lease", arguments->lease_s,
                   "With --hosts: members end after S seconds without a word of\nthis command; default: they do not")
      ->between(1, 1e6, "seconds")
      ->type_name("S");
  command->add_flag("--held", arguments->held, "")->hidden();
  command
      ->add_option("--files", arguments->files,
                   "What members have written to files since the checkpoint:\nkeep (default), or roll-back: cut off "
                   "what a file has grown by")
      ->one_of({"keep", "roll-back"})
      ->type_name("WAY");
  command
      ->add_option("--workers", arguments->workers,
                   "Of a master whose workers are no members: how many it is to\nmake; default as many as it had. 0: "
                   "it waits for some")
      ->between(0, 100000, "workers")
      ->type_name("N");
  command
      ->add_option(
          "--program", arguments->portable.programs,
          "Of portable programs: run FILE instead of the recorded program.\nRepeated: member i runs number i "
          "modulo their count")
      ->not_empty("a program")
      ->type_name("FILE");
  command
      ->add_option(
          "--runner", arguments->portable.runners,
          "Of portable programs: runs a program of another architecture,\nas in run --portable; may be repeated")
      ->not_empty("a runner")
      ->type_name("A=CMD");
  command->add_flag("--lazy", arguments->lazy,
                    "Refused, with the reason: memory comes whole before a\nprocess goes on");
  command->add_option("--wait", arguments->wait_s, "How long to wait for those other commands (300)")
      ->between(1, 86400, "seconds")
      ->type_name("SECONDS");
  command
      ->add_option("--timeout", arguments->timeout_s,
                   "How long a process may take to load the verbs library, and\nhalf of how long it waits for others "
                   "in a step (60)")
      ->between(1, 86400, "seconds")
      ->type_name("SECONDS");
  add_far_options(command, &arguments->far, true);
  add_common(command, &arguments->common);
  command->footer(kRestartExamples);
  command->callback([arguments] { return restart(*arguments); });
}

}  // namespace shadowib::cli
