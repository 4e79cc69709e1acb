// shadowib run: starts a program as (part of) a job, in the calling process, so that its pid and signals are its own.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "hooks/imager/processor.h"
#include "hooks/store/near_place.h"
#include "hooks/threads/request_signals.h"
#include "shadowib/base/deadline.h"
#include "shadowib/cli/clusters.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/container_init.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/far_options.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/inherited.h"
#include "shadowib/cli/inherited_signals.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/launched_exchange.h"
#include "shadowib/cli/libraries.h"
#include "shadowib/cli/network.h"
#include "shadowib/cli/portable_job.h"
#include "shadowib/cli/program.h"
#include "shadowib/cli/save_option.h"
#include "shadowib/cli/store_options.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

struct RunOptions {
  Common common;
  std::string job, backend, cpu, network, checkpoint_on, kill_on;
  std::string interval;
  double mtbf_s = 0, timeout_s = 0;
  unsigned keep = 0, processes = 0;
  std::string metrics, save, compress;
  StoreOptions store_options;
  FarOptions far_options;
  FarSettings far;
  ChosenStore store;
  ClusterOptions cluster;
  bool close_inherited = false, join_children = false, incremental = false, guest = false;
  bool portable = false;
  PortableStart portable_start;
  Arguments command;
};

constexpr char kRunExamples[] =
    "Examples:\n"
    "  shadowib run -- ./server 5000                      a job of one process, named server-<pid>\n"
    "  shadowib run --job demo -- ibv_rc_pingpong &       two processes that are checkpointed together\n"
    "  shadowib run --job demo -- ibv_rc_pingpong localhost\n"
    "  mpirun -np 4 shadowib run --job j -- ./app         or: shadowib run --job j -- mpirun -np 4 ./app\n"
    "  shadowib run --job demo --guest -- ./client        shares demo's network, is in no checkpoint, ends with "
    "demo\n"
    "  shadowib run --job demo --cluster east -- ./app    a process of demo's cluster east\n"
    "  shadowib run --portable --job solve -- ./solve     a program of shadowib-cc, saved at its sites\n"
    "  shadowib run --interval 600 --keep 3 --kill-on USR1 -- ./app\n\n"
    "CMD keeps the pid, gets the signals, and its exit code is the command's. 125: shadowib failed before CMD was\n"
    "started; 126: CMD cannot be run under shadowib (static, setuid, another architecture) or at all; 127: no CMD.\n";

constexpr char kAutoInterval[] = "auto";

void export_variable(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void export_seconds(const char* name, double seconds) {
  if (seconds <= 0) return;
  char text[32];
  std::snprintf(text, sizeof(text), "%g", seconds);
  export_variable(name, text);
}

void export_unless_set(const char* name, const char* value) { ::setenv(name, value, 0); }

// For those who choose code by the processor: the loader and libc of every process of CMD, and what else we know to
// have a switch. The loader binds all functions at once, since it saves registers when it does so later, in room that
// it has measured on this machine.
void export_processor_level(const std::string& cpu) {
  const int level = processor_level(cpu.c_str());
  export_variable("SHADOWIB_CPU", cpu);
  export_variable("LD_BIND_NOW", "1");
  export_variable("GLIBC_TUNABLES", with_processor_level(variable("GLIBC_TUNABLES"), level));
  if (level >= kMostProcessorLevel) return;
  export_unless_set("OMPI_MCA_op_avx_support", level == 3   ? "SSE,SSE2,SSE3,SSE4.1,AVX,AVX2"
                                               : level == 2 ? "SSE,SSE2,SSE3,SSE4.1"
                                                            : "SSE,SSE2");
  if (level > 1) export_unless_set("OPENBLAS_CORETYPE", level == 3 ? "Haswell" : "Nehalem");
}

Status check_processor_level(const RunOptions& options) {
  if (options.cpu.empty()) return {};
  const char* cpu = options.cpu.c_str();
  const int level = processor_level(cpu);
  if (level < 0)
    return Status::of(Code::kUsage, 0, "SHADOWIB_CPU=%.60s: use x86-64, x86-64-v2, x86-64-v3 or x86-64-v4", cpu);
  const int here = level_of_this_processor();
  if (level <= here) return {};
  return Status::of(Code::kUsage, 0, "--cpu %s: this processor has no more than x86-64%s", cpu,
                    here == 1 ? "" : ("-v" + std::to_string(here)).c_str());
}

Status set_environment(const RunOptions& options, const Libraries& libraries, const std::string& exchange) {
  std::error_code error;
  export_variable("SHADOWIB_JOB", options.job);
  export_variable("SHADOWIB_DIR", options.common.directory);
  export_variable("SHADOWIB_EXCHANGE", exchange);
  ::unsetenv("SHADOWIB_REDIS_PASSWORD");  // CMD's environment goes into images
  export_variable("SHADOWIB_BACKEND", options.backend);
  export_cluster(options.cluster);
  if (!options.cpu.empty()) export_processor_level(options.cpu);
  if (!options.network.empty()) export_variable("SHADOWIB_IB2TCP_NETWORK", options.network);
  ::unsetenv("SHADOWIB_FAR");  // recorded with the job
  ::unsetenv("SHADOWIB_FLUSH");
  export_store(options.store);
  if (!options.interval.empty()) export_variable("SHADOWIB_INTERVAL", options.interval);
  export_seconds("SHADOWIB_MTBF", options.mtbf_s);
  if (!options.checkpoint_on.empty()) export_variable("SHADOWIB_CHECKPOINT_ON", options.checkpoint_on);
  if (!options.kill_on.empty()) export_variable("SHADOWIB_KILL_ON", options.kill_on);
  if (options.processes > 0) export_variable("SHADOWIB_PROCESSES", std::to_string(options.processes));
  if (options.keep > 0) export_variable("SHADOWIB_KEEP", std::to_string(options.keep));
  export_seconds("SHADOWIB_TIMEOUT", options.timeout_s);
  if (!options.save.empty()) export_variable("SHADOWIB_SAVE", options.save);
  if (options.incremental) export_variable("SHADOWIB_INCREMENTAL", "1");
  if (!options.compress.empty()) export_variable("SHADOWIB_COMPRESS", options.compress);
  if (!options.metrics.empty())
    export_variable("SHADOWIB_METRICS", fs::absolute(options.metrics, error).lexically_normal());
  // Of a PMIx launcher, CMD or what has started us: what ranks are told they keep in memory of their own, which goes
  // into the image, and not in files of the launcher's, which end with it.
  if (variable("PMIX_MCA_gds").empty()) export_variable("PMIX_MCA_gds", "hash");
  // Of UCX, which counts the time between a kill and a restart: after it what had not been acknowledged would be
  // given up.
  if (variable("UCX_UD_TIMEOUT").empty()) export_variable("UCX_UD_TIMEOUT", "6000000s");
  if (options.guest) export_variable("SHADOWIB_GUEST", "1");
  export_variable("SHADOWIB_COMMAND", fs::read_symlink("/proc/self/exe", error));
  export_variable("LD_PRELOAD", preload_list(libraries, options.join_children, variable("LD_PRELOAD")));
  if (std::string path = library_path(libraries, variable("LD_LIBRARY_PATH")); !path.empty())
    export_variable("LD_LIBRARY_PATH", path);
  return {};
}

int replace_process(const std::string& program, const Arguments& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  give_back_inherited_signals();
  ::execv(program.c_str(), arguments.data());
  int err = errno;
  if (err == ENOEXEC) {  // a script that names no interpreter: as a shell would
    std::string shell = "/bin/sh", script = program;
    arguments[0] = script.data();
    arguments.insert(arguments.begin(), shell.data());
    ::execv("/bin/sh", arguments.data());
    err = errno;
  }
  std::fprintf(stderr, "shadowib: cannot execute %s: %s\n", program.c_str(), std::strerror(err));
  return err == ENOENT ? kRunNotFound : kRunRefused;
}

// In the options, or in the environment that CMD inherits.
Status check_own_checkpoints(const RunOptions& options) {
  const std::string given[] = {options.checkpoint_on.empty() ? environment("CHECKPOINT_ON") : options.checkpoint_on,
                               options.kill_on.empty() ? environment("KILL_ON") : options.kill_on};
  std::uint64_t signals[2] = {0, 0};
  for (int i = 0; i < 2; ++i)
    if (Status s = given[i].empty() ? Status() : parse_request_signals(given[i].c_str(), &signals[i]); !s.ok())
      return Status::of(Code::kUsage, 0, "%s: %.200s", i == 0 ? "--checkpoint-on" : "--kill-on", s.text());
  if ((signals[0] & signals[1]) != 0)
    return Status::of(Code::kUsage, 0, "--checkpoint-on %.60s and --kill-on %.60s name the same signal",
                      given[0].c_str(), given[1].c_str());
  unsigned count = 0;
  if (options.keep == 0) SHADOWIB_TRY(keep_variable(&count));
  return options.processes == 0 ? processes_variable(&count) : Status();
}

Status take_store(RunOptions* options) {
  std::string who;
  // What an earlier job of that name was started with does not count.
  if (!job_in_use(options->common.directory, options->job, &who))
    SHADOWIB_TRY(record_store(options->common.directory, options->job, {}));
  SHADOWIB_TRY(choose_store(options->store_options, options->common.directory, options->job, &options->store));
  return check_store_here(options->store);
}

// Opened once here, where a wrong URI can still be told to a person, and before anything of it is on record.
Status try_exchange(const Common& common, const std::string& job, std::string* exchange) {
  const JobPaths paths = job_paths(common.directory, job);
  std::error_code error;
  const bool had_password = fs::exists(paths.password, error);
  *exchange = exchange_of(common, job);
  if (is_launched()) *exchange = unsettled_exchange(*exchange);
  std::unique_ptr<Exchange> tried;
  Status status = settle_exchange(paths.password, exchange);
  if (status.ok()) status = Exchange::open(*exchange, true, &tried);
  if (status.ok()) return {};
  if (!had_password) ::unlink(paths.password.c_str());
  ::rmdir(paths.top.c_str());  // if this command has made it, and nobody uses it by now
  return status;
}

// Without the arguments, which may hold a password: reports of a history are mailed and published.
HistoryEvent started_event(const RunOptions& options) {
  const std::string name = std::filesystem::path(options.command[0]).filename();
  return HistoryEvent("started").add("command", name).add("backend", options.backend);
}

// What the environment says where there is no option; CMD inherits the rest of it.
Status take_variables(RunOptions* options) {
  if (options->backend.empty()) SHADOWIB_TRY(backend_variable(&options->backend));
  if (options->backend.empty()) options->backend = "auto";
  std::string interval = options->interval.empty() ? environment("INTERVAL") : options->interval;
  if (interval != kAutoInterval && options->interval.empty()) SHADOWIB_TRY(seconds_variable("INTERVAL"));
  if (options->mtbf_s == 0) SHADOWIB_TRY(seconds_variable("MTBF"));
  if (interval == kAutoInterval && options->mtbf_s == 0 && environment("MTBF").empty())
    return Status(Code::kUsage, EINVAL,
                  "--interval auto needs --mtbf S, the mean time between failures of all the job's hosts together");
  return options->timeout_s == 0 ? seconds_variable("TIMEOUT") : Status();
}

// What CMD would be started with by oversight of whoever starts this: an IDE, a CI runner.
void treat_inherited(bool close) {
  std::vector<InheritedDescriptor> inherited = find_inherited();
  if (close) {
    for (const InheritedDescriptor& d : inherited) ::fcntl(d.fd, F_SETFD, FD_CLOEXEC);
    inherited.clear();
  }
  std::fputs(describe_inherited(inherited, variable("SHADOWIB_INHERITED")).c_str(), stderr);
  if (const std::string list = inherited_list(inherited); list.empty())
    ::unsetenv("SHADOWIB_INHERITED");
  else
    export_variable("SHADOWIB_INHERITED", list);
}

// What is of checkpoints means nothing to a guest.
Status check_guest(const RunOptions& options) {
  const bool of_checkpoints = !options.interval.empty() || options.mtbf_s > 0 || options.keep > 0 ||
                              options.timeout_s > 0 || !options.checkpoint_on.empty() || !options.kill_on.empty() ||
                              !options.save.empty() || !options.compress.empty() || !options.metrics.empty() ||
                              options.join_children || options.incremental || options.processes > 0 ||
                              options.store_options.given() || options.far_options.given() || options.cluster.given();
  if (of_checkpoints)
    return Status(Code::kUsage, EINVAL,
                  "--guest: a guest is in no checkpoint; leave out the options of checkpoints, stores, clusters and "
                  "--join-children");
  return options.job.empty() ? Status(Code::kUsage, EINVAL, "--guest needs --job J, the job whose guest CMD becomes")
                             : Status();
}

// The job is one that members have founded, or are founding right now.
Status find_job_of_guest(const Common& common, const std::string& job, std::string* exchange) {
  constexpr int kPatienceMs = 5000, kStepMs = 20;
  const JobPaths paths = job_paths(common.directory, job);
  std::error_code error;
  for (const Deadline deadline = Deadline::in_ms(kPatienceMs); !fs::exists(paths.epoch, error);) {
    if (deadline.has_passed())
      return Status::of(Code::kNotFound, ENOENT, "there is no job %.64s in %.200s to be a guest of", job.c_str(),
                        common.directory.c_str());
    ::usleep(kStepMs * 1000);
  }
  if (fs::exists(paths.clusters, error))
    return Status::of(
        Code::kUsage, EOPNOTSUPP,
        "job %.64s is a federation: a guest is in no cluster, so nobody could judge its messages; start "
        "CMD as a process of a cluster, with --cluster and without --guest",
        job.c_str());
  *exchange = exchange_of(common, job);
  std::unique_ptr<Exchange> tried;
  SHADOWIB_TRY(settle_exchange(paths.password, exchange));
  return Exchange::open(*exchange, false, &tried);
}

int run_failed(const Common& common, const Status& status, int exit_code) {
  (void)fail(common, status);
  return exit_code;
}

Status find_libraries_for(const RunOptions& options, Libraries* libraries) {
  SHADOWIB_TRY(find_libraries(libraries));
  if (options.join_children && libraries->join.empty())
    return Status(Code::kNotFound, ENOENT,
                  "--join-children: libshadowib-join.so is not there; build or install shadowib completely");
  return {};
}

// From here on CMD.
int start(RunOptions& options, const Libraries& libraries, const std::string& program, const std::string& exchange) {
  Common& common = options.common;
  if (Status s = set_environment(options, libraries, exchange); !s.ok()) return run_failed(common, s, kRunFailed);
  if (!options.guest && speaks_for_launch()) note_event(common.directory, options.job, started_event(options));
  treat_inherited(options.close_inherited);
  return replace_process(program, options.command);
}

int run_as_guest(RunOptions& options, const std::string& program) {
  Common& common = options.common;
  std::string exchange;
  Libraries libraries;
  Status status = check_guest(options);
  if (status.ok() && options.backend.empty()) status = backend_variable(&options.backend);
  if (options.backend.empty()) options.backend = "auto";
  if (options.network.empty()) options.network = environment("IB2TCP_NETWORK");
  if (options.cpu.empty()) options.cpu = environment("CPU");
  if (status.ok()) status = check_network(options.network);
  if (status.ok()) status = check_processor_level(options);
  if (status.ok()) status = find_libraries_for(options, &libraries);
  if (status.ok()) status = find_job_of_guest(common, options.job, &exchange);
  return status.ok() ? start(options, libraries, program, exchange) : run_failed(common, status, kRunFailed);
}

// Several `run` may do so at once.
Status enter_job(RunOptions* options, const std::string& exchange) {
  const std::string& directory = options->common.directory;
  SharingLock lock;
  if (std::string who; is_portable_job(directory, options->job)) {
    if (job_alive(directory, options->job, &who))
      return Status::of(Code::kBusy, 0, "job %.64s is one of portable programs; give --portable, or another --job",
                        options->job.c_str());
    forget_portable_job(directory, options->job);
  }
  SHADOWIB_TRY(join_clusters(directory, options->job, options->cluster, exchange, &options->backend, &lock));
  return prepare_job(directory, options->job, exchange);
}

// Options of the shim mean nothing to a portable program.
int run_as_portable(RunOptions& options) {
  Common& common = options.common;
  const bool of_shim = options.guest || options.join_children || options.incremental || options.processes > 0 ||
                       !options.backend.empty() || !options.cpu.empty() || !options.network.empty() ||
                       !options.interval.empty() || options.mtbf_s > 0 || options.timeout_s > 0 ||
                       !options.checkpoint_on.empty() || !options.kill_on.empty() || !options.save.empty() ||
                       !options.compress.empty() || !options.metrics.empty() || options.store_options.given() ||
                       options.far_options.given() || options.cluster.given() || options.keep > 0;
  if (of_shim)
    return run_failed(common,
                      Status(Code::kUsage, EINVAL,
                             "--portable goes with --job, --dir, --exchange, --member and --runner only; shadowib "
                             "checkpoint J takes checkpoints"),
                      kRunFailed);
  if (options.job.empty()) options.job = environment("JOB");
  if (options.job.empty()) options.job = default_job_name(options.command[0], ::getpid());
  if (!valid_job_name(options.job))
    return run_failed(common, Status::of(Code::kUsage, 0, "--job '%.100s': %s", options.job.c_str(), kJobNameRule),
                      kRunFailed);
  // In this order: a process that starts at the same time makes the request before it takes its lock.
  std::string who;
  if (job_alive(common.directory, options.job, &who) && !is_portable_job(common.directory, options.job))
    return run_failed(
        common,
        Status::of(Code::kBusy, 0, "job %.64s is alive, and not of portable programs; give another --job",
                   options.job.c_str()),
        kRunFailed);
  options.portable_start.job = options.job;
  options.portable_start.command = options.command;
  return run_portable(common, options.portable_start);
}

int run(RunOptions& options) {
  Common& common = options.common;
  if (Status s = resolve(&common); !s.ok()) return run_failed(common, s, kRunFailed);
  if (options.command.empty())
    return run_failed(common, Status(Code::kUsage, 0, "no program to run; see shadowib run --help"), kRunFailed);
  const PortableStart& portable = options.portable_start;
  if (options.portable) return run_as_portable(options);
  if (portable.member >= 0 || !portable.from.empty() || !portable.runners.empty())
    return run_failed(common, Status(Code::kUsage, EINVAL, "--member and --runner go with --portable only"),
                      kRunFailed);
  std::string program;
  if (Status s = find_program(options.command[0], &program); !s.ok())
    return run_failed(common, s, s.code() == Code::kNotFound ? kRunNotFound : kRunRefused);
  if (Status s = judge_program(program); !s.ok()) return run_failed(common, s, kRunRefused);

  if (!leave_init_behind())
    return run_failed(common, Status::of(Code::kIo, errno, "cannot fork: %s", std::strerror(errno)), kRunFailed);
  if (options.job.empty()) options.job = environment("JOB");
  options.guest = options.guest || (!environment("GUEST").empty() && environment("GUEST") != "0");
  if (options.job.empty() && !options.guest) options.job = default_job_name(options.command[0], ::getpid());
  if (!(options.guest && options.job.empty()) && !valid_job_name(options.job))
    return run_failed(common, Status::of(Code::kUsage, 0, "--job '%.100s': %s", options.job.c_str(), kJobNameRule),
                      kRunFailed);
  if (options.guest) return run_as_guest(options, program);
  if (Status s = take_variables(&options); !s.ok()) return run_failed(common, s, kRunFailed);
  if (Status s = take_cluster_variables(options.job, &options.cluster); !s.ok())
    return run_failed(common, s, kRunFailed);
  if (Status s = take_store(&options); !s.ok()) return run_failed(common, s, kRunFailed);
  if (Status s = take_far(options.far_options, common.directory, options.job, &options.far); !s.ok())
    return run_failed(common, s, kRunFailed);
  SaveWay save{};
  if (Status s = choose_save(options.save, options.store.is_central(), &save); !s.ok())
    return run_failed(common, s, kRunFailed);
  Compression compression{};
  if (Status s = choose_compression(options.compress, &compression); !s.ok())
    return run_failed(common, s, kRunFailed);
  if (Status s = choose_incremental(options.incremental, options.store.is_central(),
                                    options.far.known && options.far.every > 0, &options.incremental);
      !s.ok())
    return run_failed(common, s, kRunFailed);
  if (Status s = check_own_checkpoints(options); !s.ok()) return run_failed(common, s, kRunFailed);
  if (options.cpu.empty()) options.cpu = environment("CPU");
  if (Status s = check_processor_level(options); !s.ok()) return run_failed(common, s, kRunFailed);
  if (options.network.empty()) options.network = environment("IB2TCP_NETWORK");
  if (Status s = check_network(options.network); !s.ok()) return run_failed(common, s, kRunFailed);
  Libraries libraries;
  if (Status s = find_libraries_for(options, &libraries); !s.ok()) return run_failed(common, s, kRunFailed);
  std::string exchange;
  if (Status s = try_exchange(common, options.job, &exchange); !s.ok()) return run_failed(common, s, kRunFailed);
  if (Status s = enter_job(&options, exchange); !s.ok()) return run_failed(common, s, kRunFailed);
  if (Status s = record_store(common.directory, options.job, options.store); !s.ok())
    return run_failed(common, s, kRunFailed);
  if (Status s = record_far(common.directory, options.job, options.far); !s.ok())
    return run_failed(common, s, kRunFailed);
  return start(options, libraries, program, exchange);
}

}  // namespace

void add_run(Command& program) {
  auto options = std::make_shared<RunOptions>();
  Command* command = program.add_subcommand("run", "Start a program under shadowib");
  command
      ->add_option("--job", options->job, "The job CMD belongs to; default $SHADOWIB_JOB, else CMD's\nname and pid")
      ->not_empty("a job")
      ->type_name("J")
      ->completed_by(kJobNames);
  command
      ->add_option(
          "--backend", options->backend,
          "What carries the verbs: verbs (the adapter), ib2tcp (TCP and\nshared memory), or auto: verbs if a "
          "device exists, else ib2tcp;\ndefault $SHADOWIB_BACKEND, else auto")
      ->one_of({"auto", "verbs", "ib2tcp"})
      ->type_name("NAME");
  command
      ->add_option(
          "--cpu", options->cpu,
          "Let CMD find no more of this processor than that level of the\nx86-64 psABI, so that its sets can be "
          "restarted wherever a\nprocessor has it; default $SHADOWIB_CPU, else all, which a restart\nthen asks for")
      ->one_of({"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"})
      ->type_name("LEVEL");
  add_network(command, &options->network);
  add_save_option(command, &options->save);
  add_incremental_option(command, &options->incremental);
  add_compress_option(command, &options->compress);
  add_store_options(command, &options->store_options);
  add_far_options(command, &options->far_options, true);
  add_cluster_options(command, &options->cluster);
  command
      ->add_option("--processes", options->processes,
                   "How many processes of the job open an RDMA device: until all\nhave, a checkpoint is refused with "
                   "exit code 11; ranks of a\nlauncher need no such number")
      ->between(1, kMostProcesses, "processes")
      ->type_name("N");
  command
      ->add_option("--interval", options->interval,
                   "Take a checkpoint every S seconds, or auto: as often as loses\nthe least work, by --mtbf and the "
                   "pauses so far")
      ->between_or(0.001, 1e8, "seconds", kAutoInterval)
      ->type_name("S");
  command
      ->add_option("--mtbf", options->mtbf_s,
                   "For --interval auto: mean time between failures of all the\njob's hosts together; default "
                   "$SHADOWIB_MTBF")
      ->between(0.001, 1e9, "seconds")
      ->type_name("S");
  command
      ->add_option("--checkpoint-on", options->checkpoint_on,
                   "Take a checkpoint when a process of the job gets one of these\nsignals, as USR1,USR2; CMD does "
                   "not see them")
      ->type_name("SIGNALS");
  command
      ->add_option("--kill-on", options->kill_on,
                   "The same, and end the job once its set is committed: for what\na batch system sends before it "
                   "takes the machine back")
      ->type_name("SIGNALS");
  command
      ->add_option("--keep", options->keep,
                   "After a checkpoint that the job takes of itself remove all but its\nN newest sets; by default "
                   "all are kept")
      ->between(1, kMostKept, "sets")
      ->type_name("N");
  command->add_option("--timeout", options->timeout_s, "How long such a checkpoint may take; default 60")
      ->between(0.001, 2000000, "seconds")
      ->type_name("S");
  command
      ->add_option("--metrics", options->metrics,
                   "After a checkpoint that the job takes of itself write its figures\nto FILE in Prometheus' text "
                   "format")
      ->not_empty("a file")
      ->type_name("FILE");
  command->add_flag(
      "--join-children", options->join_children,
      "Let CMD and every program that it starts join the job, also without\nan RDMA device: shells, helpers "
      "of Python, filters");
  command->add_flag("--guest", options->guest,
                    "Let CMD share the network of job J without being in its\ncheckpoints: a client, or a worker. It "
                    "ends with the job; after a\nrestart it is dead to the members");
  command->add_flag(
      "--close-inherited", options->close_inherited,
      "Start CMD without the descriptors above 2 that it would inherit and\nthat cannot be checkpointed, as "
      "an IDE or a CI runner leaves some");
  command->add_flag("--portable", options->portable,
                    "CMD is a program of shadowib-cc: it runs without the shim, and is\nsaved at its sites");
  command
      ->add_option("--member", options->portable_start.member,
                   "With --portable: the process's index in the job; default the least\nthat is free")
      ->between(0, kMostProcesses, "")
      ->type_name("N");
  command
      ->add_option("--runner", options->portable_start.runners,
                   "With --portable: runs a program of another architecture, as\ns390x='qemu-s390x -L "
                   "/usr/s390x-linux-gnu'; may be repeated")
      ->not_empty("a runner")
      ->type_name("A=CMD");
  command->add_option("--image", options->portable_start.from, "")->not_empty("an image")->hidden();
  command->add_option("--among", options->portable_start.among, "")->not_empty("a program")->hidden();
  add_common(command, &options->common);
  command->footer(kRunExamples);
  command->take_rest(options->command, " -- CMD [ARGUMENT...]");
  command->usage_code(kRunFailed);
  command->callback([options] { return run(*options); });
}

}  // namespace shadowib::cli
