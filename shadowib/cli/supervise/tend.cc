// shadowib tend: looks after the clusters of a federation, and takes those back that fail.
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <set>
#include <sstream>

#include "hooks/job/cluster.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/cli/clusters.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/network.h"
#include "shadowib/cli/supervise/hosts.h"
#include "shadowib/cli/supervise/processes.h"
#include "shadowib/cli/supervise/settings.h"
#include "shadowib/cli/supervise/tender.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace {

constexpr char kTendExamples[] =
    "Examples:\n"
    "  shadowib tend demo                           all clusters of job demo\n"
    "  shadowib tend demo --cluster east            cluster east alone\n"
    "  shadowib tend demo --restarts 3 --json       give up sooner, and tell each event as a line of JSON\n\n"
    "A cluster that loses a process goes back to its own checkpoint, as by `shadowib restart --job demo`; the "
    "others\n"
    "run on. A signal ends the watching, and not the job: start the command again to go on. It takes no "
    "checkpoints:\n"
    "see run --interval. The exit code is 0 if all members ended with 0, else the first other code; 70 given up;\n"
    "75 the job was saved and ended.\n";

constexpr int kShortHoldMs = 2000;

struct TendArguments {
  SuperviseSettings settings;
  std::string clusters, network, files = "roll-back";
  double patience_s = 0;
  GivenHosts hosts;
};

Status parse_clusters(const std::string& list, std::set<std::string>* clusters) {
  std::istringstream words(list);
  for (std::string name; std::getline(words, name, ',');) {
    if (!valid_cluster_name(name))
      return Status::of(Code::kUsage, EINVAL, "--cluster: '%.60s' is no name of a cluster: %s", name.c_str(),
                        kClusterNameRule);
    clusters->insert(name);
  }
  return {};
}

// The names are known from the first process of each on.
Status check_clusters(const SuperviseSettings& settings, const std::set<std::string>& clusters) {
  const std::set<std::string> known = recorded_clusters(settings.common.directory, settings.job);
  if (known.empty())
    return Status::of(Code::kNotFound, 0, "job %.64s has no clusters; `shadowib supervise` looks after such a job",
                      settings.job.c_str());
  std::string names;
  for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
  for (const std::string& name : clusters)
    if (!known.contains(name))
      return Status::of(Code::kNotFound, 0, "job %.64s has no cluster %.32s; there are: %.150s", settings.job.c_str(),
                        name.c_str(), names.c_str());
  return {};
}

// Nobody restarts the whole job meanwhile, and nobody else looks after one of these clusters.
Status take_locks(const SuperviseSettings& settings, const std::set<std::string>& clusters, std::vector<int>* locks) {
  const std::string path = job_paths(settings.common.directory, settings.job).supervisor;
  locks->push_back(-1);
  if (clusters.empty()) return take_supervisor_lock(settings, path, &locks->back());
  // Another command that looks after clusters has it for a moment, too.
  Status status;
  for (const Deadline deadline = Deadline::in_ms(kShortHoldMs);; ::usleep(20000)) {
    status = take_cluster_lock(settings, path, &locks->back());
    if (status.code() != Code::kBusy || deadline.has_passed()) break;
  }
  SHADOWIB_TRY(status);
  for (const std::string& name : clusters) {
    locks->push_back(-1);
    SHADOWIB_TRY(take_cluster_lock(settings, path + "." + name, &locks->back()));
  }
  release_alive_lock(locks->front());
  locks->front() = -1;
  return {};
}

int tend(TendArguments& arguments) {
  SuperviseSettings& settings = arguments.settings;
  Common& common = settings.common;
  std::set<std::string> clusters;
  std::vector<int> locks;
  (void)own_program();  // while it is there
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  if (Status s = require_directory(common); !s.ok()) return fail(common, s);
  if (arguments.network.empty()) arguments.network = environment("IB2TCP_NETWORK");
  if (Status s = check_network(arguments.network); !s.ok()) return fail(common, s);
  settings.begun_s = wall_clock_ns() / 1'000'000'000;
  if (Status s = take_hosts(arguments.hosts, &settings); !s.ok()) return fail(common, s);
  if (Status s = parse_clusters(arguments.clusters, &clusters); !s.ok()) return fail(common, s);
  if (Status s = choose_job(common.directory, std::string(settings.job), &settings.job); !s.ok())
    return fail(common, s);
  if (Status s = check_clusters(settings, clusters); !s.ok()) return fail(common, s);
  if (Status s = take_locks(settings, clusters, &locks); !s.ok()) return fail(common, s);
  std::vector<std::string> words{"--files", arguments.files, "--timeout",
                                 std::to_string(static_cast<int>(settings.timeout_s))};
  if (!arguments.network.empty()) words.insert(words.end(), {"--network", arguments.network});
  if (arguments.patience_s > 0) words.insert(words.end(), {"--patience", std::to_string(arguments.patience_s)});
  const int code = Tender(settings, std::move(clusters), std::move(words)).run();
  for (const int lock : locks)
    if (lock >= 0) release_alive_lock(lock);
  return code;
}

}  // namespace

void add_tend(Command& program) {
  auto arguments = std::make_shared<TendArguments>();
  SuperviseSettings& settings = arguments->settings;
  settings.name = "tend";
  Command* command = program.add_subcommand("tend", "Take clusters back when they fail");
  command->add_option("J", settings.job, "The job; may be left out if only one is alive")
      ->not_empty("a job")
      ->completed_by(kJobNames);
  command->add_option("--cluster", arguments->clusters, "Only these clusters, as B or A,B; default: all of the job")
      ->not_empty("a cluster")
      ->type_name("LIST");
  command
      ->add_option("--restarts", settings.most_restarts,
                   "Give up after N failures of a cluster in a row without a newer\ncheckpoint of it; 0: never; "
                   "default 10")
      ->between(0, 1000000, "failures")
      ->type_name("N");
  command
      ->add_option("--on-event", settings.on_event,
                   "Run CMD by sh when a cluster fails, runs again, cannot be taken\nback or is given up; "
                   "SHADOWIB_EVENT tells which")
      ->not_empty("a command")
      ->type_name("CMD");
  command
      ->add_option("--files", arguments->files,
                   "Cut off what files have grown by since the checkpoint:\nroll-back (default), or keep")
      ->one_of({"keep", "roll-back"})
      ->type_name("WAY");
  command
      ->add_option(
          "--patience", arguments->patience_s,
          "As of restart: how long a cluster may take nothing of what is\nsent it again; default: as long as "
          "it takes")
      ->between(0.1, 1e6, "seconds")
      ->type_name("S");
  add_host_options(command,
                   "Where clusters are taken back: HOST:SLOTS,... or slurm. Hosts\nthat do not answer are left out. "
                   "Default: here",
                   &arguments->hosts, &settings);
  add_network(command, &arguments->network);
  command->add_option("--timeout", settings.timeout_s, "As of restart: how long a step may take; default 60")
      ->between(1, 86400, "seconds")
      ->type_name("SECONDS");
  add_common(command, &settings.common);
  command->footer(kTendExamples);
  command->callback([arguments] { return tend(*arguments); });
}

}  // namespace shadowib::cli
