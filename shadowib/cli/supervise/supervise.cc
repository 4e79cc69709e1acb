// shadowib supervise: keeps a job alive, from the first start to its result.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "hooks/job/protocol.h"
#include "hooks/store/files.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/processes.h"
#include "shadowib/cli/container_init.h"
#include "shadowib/cli/host_list.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/supervise/hosts.h"
#include "shadowib/cli/supervise/processes.h"
#include "shadowib/cli/supervise/settings.h"
#include "shadowib/cli/supervise/supervisor.h"
#include "shadowib/cli/supervise/time_limit.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr char kSuperviseExamples[] =
    "Examples:\n"
    "  shadowib supervise --job demo -- mpirun -np 4 ./app      first start and every restart\n"
    "  shadowib supervise --job demo --interval 600 -- ./farm   a checkpoint every ten minutes\n\n"
    "A signal that ends a process is a failure: the job restarts from its newest good set. An orderly exit is the\n"
    "result: its code is the command's. 75: saved and ended on request, queue it again. 70: given up.\n";

constexpr char kAutoInterval[] = "auto";
constexpr unsigned kKept = 2;
constexpr std::int64_t kLostHostMs = 120'000;  // a lost host's locks on NFS stand for the server's lease

struct Given {
  SuperviseSettings settings;
  std::string interval, files = "roll-back", retry_on, until, notice;
  GivenHosts hosts;
};

double variable_or(const char* name, double otherwise) {
  const std::string value = environment(name);
  return value.empty() ? otherwise : std::atof(value.c_str());
}

Status take_variables(Given* given) {
  SuperviseSettings& settings = given->settings;
  if (settings.job.empty()) settings.job = environment("JOB");
  if (settings.job.empty())
    return Status(Code::kUsage, 0, "supervise needs --job J: the name by which its sets are found again");
  if (!valid_job_name(settings.job))
    return Status::of(Code::kUsage, 0, "--job '%.100s': %s", settings.job.c_str(), kJobNameRule);
  if (settings.command.empty())
    return Status(Code::kUsage, 0, "no program to supervise; see shadowib supervise --help");
  if (given->interval.empty()) given->interval = environment("INTERVAL");
  if (given->interval != kAutoInterval) SHADOWIB_TRY(seconds_variable("INTERVAL"));
  for (const char* name : {"MTBF", "TIMEOUT"}) SHADOWIB_TRY(seconds_variable(name));
  if (!given->interval.empty() && given->interval != kAutoInterval)
    settings.pace.interval_s = std::atof(given->interval.c_str());
  if (settings.keep == 0) SHADOWIB_TRY(keep_variable(&settings.keep));
  if (settings.keep == 0) settings.keep = kKept;
  unsigned processes = 0;
  SHADOWIB_TRY(processes_variable(&processes));
  if (settings.metrics.empty()) settings.metrics = environment("METRICS");
  if (!settings.metrics.empty()) settings.metrics = fs::absolute(settings.metrics).lexically_normal();
  if (!given->retry_on.empty()) SHADOWIB_TRY(parse_exit_codes(given->retry_on, &settings.retry_on));
  settings.begun_s = wall_clock_ns() / 1'000'000'000;
  const char* slurm_end = std::getenv("SLURM_JOB_END_TIME");
  if (!given->until.empty())
    SHADOWIB_TRY(
        parse_until(given->until, settings.begun_s, slurm_end != nullptr ? slurm_end : "", &settings.until_s));
  SHADOWIB_TRY(take_hosts(given->hosts, &settings));
  if (!given->notice.empty()) SHADOWIB_TRY(parse_notice(given->notice, &settings.notice));
  settings.roll_back = given->files == "roll-back";
  // The supervisor has them taken, also of a job that was restarted.
  for (const char* name : {"SHADOWIB_INTERVAL", "SHADOWIB_MTBF", "SHADOWIB_KEEP", "SHADOWIB_METRICS"})
    ::unsetenv(name);
  return {};
}

int supervise(Given& given) {
  SuperviseSettings& settings = given.settings;
  (void)own_program();  // while it is there
  spare_present_children();
  if (Status s = resolve(&settings.common); !s.ok()) return fail(settings.common, s);
  if (Status s = take_variables(&given); !s.ok()) return fail(settings.common, s);
  if (!leave_init_behind())
    return fail(settings.common, Status::of(Code::kIo, errno, "cannot fork: %s", std::strerror(errno)));
  int lock = -1;
  if (Status s = take_supervisor_lock(settings, job_paths(settings.common.directory, settings.job).supervisor, &lock);
      !s.ok())
    return fail(settings.common, s);
  int code = 0;
  {
    Supervisor supervisor(settings);
    code = supervisor.run();
    supervisor.finish();
  }
  if (settings.common.json) print_json({{"job", settings.job}, {"exit_code", code}});
  close_owned_descriptor(lock);
  return code;
}

}  // namespace

void tell(const SuperviseSettings& settings, const std::string& text) {
  std::fprintf(stderr, "shadowib: %s %s: %s\n", settings.name, settings.job.c_str(), text.c_str());
}

Status take_supervisor_lock(const SuperviseSettings& settings, const std::string& path, int* lock) {
  SHADOWIB_TRY(take_cluster_lock(settings, path, lock));
  // Whoever looks after one cluster has asked for this lock first.
  const std::string name = fs::path(path).filename().string() + ".";
  std::vector<std::string> names;
  (void)system_files().list(fs::path(path).parent_path().string(), &names);
  for (const std::string& other : names) {
    const std::string held = (fs::path(path).parent_path() / other).string();
    if (!other.starts_with(name) || !is_alive(held)) continue;
    release_alive_lock(*lock);
    *lock = -1;
    const LockHolder holder = lock_holder(held);
    return Status::of(Code::kBusy, 0, "cluster %.32s of job %.64s is looked after already (process %d on %.64s)",
                      other.substr(name.size()).c_str(), settings.job.c_str(), holder.pid, holder.host.c_str());
  }
  return {};
}

Status take_cluster_lock(const SuperviseSettings& settings, const std::string& path, int* lock) {
  const Deadline deadline = Deadline::in_ms(kLostHostMs);
  for (bool told = false; (*lock = hold_alive_lock(path)) < 0; told = true) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) return file_error(errno, "lock", path);
    const LockHolder holder = lock_holder(path);
    if (holder.host == host_name() || holder.host.empty() || deadline.has_passed())
      return Status::of(Code::kBusy, 0, "job %.64s is supervised already (process %d on %.64s)", settings.job.c_str(),
                        holder.pid, holder.host.c_str());
    if (!told) tell(settings, "waiting for the supervisor on " + holder.host + ", or for the end of its lock");
    ::usleep(200000);
  }
  return note_lock_holder(*lock, path);
}

std::vector<std::string> command_line_of(const SuperviseSettings& settings, std::vector<std::string> words) {
  words.insert(words.begin(), own_program());
  words.insert(words.end(), {"--dir", settings.common.directory});
  if (!settings.common.exchange.empty()) words.insert(words.end(), {"--exchange", settings.common.exchange});
  return words;
}

void add_supervise(Command& program) {
  auto given = std::make_shared<Given>();
  SuperviseSettings& settings = given->settings;
  settings.pace.mtbf_s = variable_or("MTBF", settings.pace.mtbf_s);
  settings.timeout_s = variable_or("TIMEOUT", settings.timeout_s);
  Command* command = program.add_subcommand("supervise", "Keep a job alive until it has a result");
  command->add_option("--job", settings.job, "The job; default $SHADOWIB_JOB")
      ->not_empty("a job")
      ->type_name("J")
      ->completed_by(kJobNames);
  command
      ->add_option("--interval", given->interval,
                   "Take a checkpoint every S seconds, or auto: as often as loses\nthe least work, by failures and "
                   "pauses so far; default\n$SHADOWIB_INTERVAL, else auto")
      ->between_or(0.001, 1e8, "seconds", kAutoInterval)
      ->type_name("S");
  command
      ->add_option("--mtbf", settings.pace.mtbf_s,
                   "For auto: mean time between failures to begin with; default\n$SHADOWIB_MTBF, else 86400")
      ->between(0.001, 1e9, "seconds")
      ->type_name("S");
  command
      ->add_option("--overhead", settings.pace.overhead,
                   "For auto: the part of the time that checkpoints may cost at\nmost; default 0.05")
      ->between(0.0001, 1, "parts of the time")
      ->type_name("PART");
  command
      ->add_option("--keep", settings.keep, "Keep the N newest good sets of the job; default $SHADOWIB_KEEP,\nelse 2")
      ->between(1, kMostKept, "sets")
      ->type_name("N");
  command
      ->add_option("--restarts", settings.most_restarts,
                   "Give up after N failures in a row without a newer set; 0:\nnever; default 10")
      ->between(0, 1000000, "failures")
      ->type_name("N");
  command
      ->add_option("--retry-on", given->retry_on,
                   "Take these exit codes of the job for failures, as 1,5,128-255;\nby default all codes are results")
      ->not_empty("exit codes")
      ->type_name("CODES");
  command
      ->add_option(
          "--until", given->until,
          "Save the job and end it before then: 90m from now, 18:30,\n2026-11-27T18:30, @SECONDS since 1970, "
          "or slurm, the end of the\nSlurm job. The exit code is 75")
      ->not_empty("a time")
      ->type_name("TIME");
  add_host_options(
      command,
      "Where members are restarted: HOST:SLOTS,... or slurm. Hosts\nthat do not answer are left out. CMD "
      "finds the others in\nSHADOWIB_HOSTS",
      &given->hosts, &settings);
  command
      ->add_option("--notice", given->notice,
                   "Ask CMD every 5 s how many seconds are left; or take a SIGNAL for\nthat, as USR1 or USR1@5m. The "
                   "job is saved before, as late as\nthat allows, and ended. The exit code is 75")
      ->not_empty("a command or a signal")
      ->type_name("CMD|SIGNAL");
  command
      ->add_option("--on-event", settings.on_event,
                   "Run CMD by sh when the job fails, is restarted, saved or given\nup; SHADOWIB_EVENT tells which")
      ->not_empty("a command")
      ->type_name("CMD");
  command
      ->add_option("--files", given->files,
                   "After a failure cut off what files have grown by since the\nset: roll-back (default), or keep")
      ->one_of({"keep", "roll-back"})
      ->type_name("WAY");
  command
      ->add_option("--timeout", settings.timeout_s,
                   "How long a checkpoint may take; default $SHADOWIB_TIMEOUT,\nelse 60")
      ->between(0.001, 2000000, "seconds")
      ->type_name("S");
  command
      ->add_option("--metrics", settings.metrics,
                   "Write the job's figures to FILE in Prometheus' text format, as\nthey change; default "
                   "$SHADOWIB_METRICS")
      ->not_empty("a file")
      ->type_name("FILE");
  add_common(command, &settings.common);
  command->footer(kSuperviseExamples);
  command->take_rest(settings.command, " -- CMD [ARGUMENT...]");
  command->callback([given] { return supervise(*given); });
}

}  // namespace shadowib::cli
