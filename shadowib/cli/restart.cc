// shadowib restart: starts a set's processes again on this machine, or a share of them, and waits for them.
#include "hooks/imager/restart.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "hooks/command/coordinator.h"
#include "hooks/imager/set/manifest.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/changed_files.h"
#include "shadowib/cli/clc_sets.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/doctor_set.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/far_fetch.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/keepers.h"
#include "shadowib/cli/launched_exchange.h"
#include "shadowib/cli/launched_restart.h"
#include "shadowib/cli/network.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/portable_set.h"
#include "shadowib/cli/recover.h"
#include "shadowib/cli/restart_hosts.h"
#include "shadowib/cli/restart_place.h"
#include "shadowib/cli/sets.h"
#include "shadowib/cli/store_options.h"

namespace shadowib::cli {
namespace {

struct RestartArguments {
  Common common;
  std::string set, backend, network, files = "keep";
  std::string hosts, shell;
  bool held = false;
  double lease_s = 0;
  std::optional<std::string> members;
  int workers = -1;  // -1: not given
  bool lazy = false;
  int wait_s = 300, timeout_s = 60;
  FarOptions far;
  PortableRestart portable;
  std::string job, clusters;  // of a federation: its clusters' own sets
  bool fenced = false;
  std::string in_recovery;
  RecoveryPart part;
};

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

template <std::size_t N>
Status copy_text(const std::string& from, const char* what, char (&to)[N]) {
  if (from.size() >= N) return Status::of(Code::kUsage, ENAMETOOLONG, "%s has more than %zu bytes", what, N - 1);
  std::memcpy(to, from.c_str(), from.size() + 1);
  return {};
}

// A path is meant from where the command stands, not the programs.
std::string verbs_library() {
  const std::string file = environment("IBVERBS");
  if (file.find('/') == std::string::npos) return file;
  std::error_code error;
  return std::filesystem::absolute(file, error).lexically_normal().string();
}

std::string wanted_backend(const RestartArguments& arguments) {
  return arguments.backend.empty() ? environment("BACKEND") : arguments.backend;
}

Status fill_job(const RestartArguments& arguments, const SetManifest& manifest, const std::string& exchange,
                const std::string& epoch, JobInfo* info) {
  *info = {};
  const std::string backend = wanted_backend(arguments);
  info->generation = manifest.generation + 1;
  info->step_ms = static_cast<std::uint32_t>(arguments.timeout_s) * 1000;
  info->member_count = static_cast<std::uint32_t>(manifest.members.size());
  SHADOWIB_TRY(copy_text(manifest.job, "the job's name", info->job));
  SHADOWIB_TRY(copy_text(arguments.common.directory, "--dir", info->directory));
  SHADOWIB_TRY(copy_text(exchange, "--exchange", info->exchange));
  SHADOWIB_TRY(copy_text(backend.empty() ? "auto" : backend, "--backend", info->backend));
  SHADOWIB_TRY(copy_text(epoch, "the epoch", info->epoch));
  SHADOWIB_TRY(copy_text(environment("LOG"), "SHADOWIB_LOG", info->log));
  SHADOWIB_TRY(copy_text(verbs_library(), "SHADOWIB_IBVERBS", info->verbs_library));
  SHADOWIB_TRY(copy_text(environment("FAULT"), "SHADOWIB_FAULT", info->fault));
  SHADOWIB_TRY(copy_text(arguments.network, "--network", info->ib2tcp_network));
  if (arguments.part.number != 0) {
    info->generation = arguments.part.generation;
    info->member_count = arguments.part.members;
    info->recovery = static_cast<std::uint32_t>(arguments.part.number);
  }
  return copy_text(environment("IB2TCP_TRANSPORT"), "SHADOWIB_IB2TCP_TRANSPORT", info->ib2tcp_transport);
}

const char* how_ended(int status, char (&text)[64]) {
  if (WIFSIGNALED(status))
    std::snprintf(text, sizeof(text), "killed by signal %d (SIG%s)", WTERMSIG(status),
                  ::sigabbrev_np(WTERMSIG(status)));
  else
    std::snprintf(text, sizeof(text), "exit code %d", WEXITSTATUS(status));
  return text;
}

bool ended_well(const RestartedProcess& p) { return WIFEXITED(p.exit_status) && WEXITSTATUS(p.exit_status) == 0; }

bool killed_by(const RestartedProcess& p, int signal) {
  return !p.left && WIFSIGNALED(p.exit_status) && WTERMSIG(p.exit_status) == signal;
}

// `saved_as`: the set that was committed before the processes were ended on request; "" if they were not.
int report(const Common& common, const SetManifest& manifest, const std::set<std::uint32_t>& members,
           const std::vector<RestartedProcess>& processes, const std::string& saved_as) {
  bool good = processes.size() == (members.empty() ? manifest.members.size() : members.size());
  Json list = Json::array();
  for (const RestartedProcess& p : processes) {
    char text[64];
    good = good && ended_well(p);
    const bool requested = !saved_as.empty() && killed_by(p, SIGKILL);
    if (!common.json)
      std::printf("pid %d: %s\n", p.pid,
                  p.left      ? "ended; its parent has the status"
                  : requested ? "ended on request"
                              : how_ended(p.exit_status, text));
    Json entry{{"member", p.member}, {"pid", p.pid}, {"left_to_parent", p.left}, {"on_request", requested}};
    entry["exit_code"] = !p.left && WIFEXITED(p.exit_status) ? Json(WEXITSTATUS(p.exit_status)) : Json(nullptr);
    entry["signal"] = WIFSIGNALED(p.exit_status) ? Json(WTERMSIG(p.exit_status)) : Json(nullptr);
    list.push_back(entry);
  }
  if (!saved_as.empty())
    std::fprintf(stderr, "shadowib: job %s was saved as %s and ended on request\n", manifest.job.c_str(),
                 saved_as.c_str());
  if (common.json)
    print_json({{"set", manifest.path},
                {"ok", good},
                {"saved_as", saved_as.empty() ? Json(nullptr) : Json(saved_as)},
                {"processes", list}});
  return good ? 0 : kRestartedProcessFailed;
}

// A member that could not be rebuilt says why where the program's standard error leads, which may be anywhere.
Status failure_of(const std::string& exchange, const std::string& epoch, std::uint64_t recovery,
                  const std::vector<RestartedProcess>& processes) {
  const auto of_no_matter = [](const RestartedProcess& p) { return !p.left && ended_well(p); };
  if (std::all_of(processes.begin(), processes.end(), of_no_matter)) return {};
  std::vector<std::uint32_t> members;
  for (const RestartedProcess& p : processes) members.push_back(p.member);
  return failure_of_restart(exchange, epoch, recovery, members);
}

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

// What a restart tells while it is under way, to people and to the job's history.
class Told {
 public:
  Told(const RestartArguments& arguments, const SetManifest& manifest, const std::string& exchange,
       std::size_t members)
      : arguments_(arguments), manifest_(manifest), exchange_(exchange), members_(members) {}

  void verified() { verified_ns_ = monotonic_ns(); }
  void began(const std::string& epoch) { epoch_ = epoch; }
  // The end on request, if there was one.
  const std::string& saved_as() {
    if (saved_as_.empty()) saved_as_ = saved_before_end(exchange_, epoch_);
    return saved_as_;
  }

  void line(std::string text) {
    static constexpr char kKilled[] = "ended with signal 9";
    if (text.starts_with("restored") && !running_) note_running();
    if (text.ends_with(kKilled) && !saved_as().empty())
      text.replace(text.size() - (sizeof(kKilled) - 1), std::string::npos, "ended on request");
    std::fprintf(stderr, "shadowib: %s\n", text.c_str());
  }

  int failed(const Status& status) {
    const HistoryEvent event = HistoryEvent("restart_failed")
                                   .add("set", name_of(manifest_))
                                   .add("code", static_cast<int>(status.code()))
                                   .add("error", status.text());
    if (status.code() != Code::kBusy && !is_part())
      (void)append_history(arguments_.common.directory, manifest_.job, event).ok();  // the error is what counts
    return fail(arguments_.common, status);
  }

  void ended(const std::vector<RestartedProcess>& processes, int exit_code) {
    bool first = true;  // the others' time is the same
    for (const RestartedProcess& p : processes)
      if (saved_as().empty() && !p.left && !ended_well(p)) note_failure(p, std::exchange(first, false));
    if (is_part()) return;
    HistoryEvent end("ended");  // at this moment: after the failures
    end.add("exit_code", exit_code);
    if (!saved_as().empty()) end.add("set", std::filesystem::path(saved_as_).filename().string());
    note(end);
  }

 private:
  // Of a recovery, whose command tells the history of it.
  bool is_part() const { return arguments_.part.number != 0; }

  void note_running() {
    running_ = true;
    if (is_part()) return;
    const std::int64_t now = monotonic_ns();
    note(HistoryEvent("restart")
             .add("set", name_of(manifest_))
             .add("number", manifest_.number)
             .add("generation", manifest_.generation + 1)
             .add("members", members_)
             .add("backend", wanted_backend(arguments_).empty() ? "auto" : wanted_backend(arguments_))
             .add("verify_ms", milliseconds(verified_ns_ - began_ns_))
             .add("ready_ms", milliseconds(now - began_ns_)));
  }

  // Work since the newest set is lost, or all since the restart if it has made none.
  void note_failure(const RestartedProcess& p, bool first) {
    char text[64];
    HistoryEvent failure("failure");
    failure.add("member", p.member).add("process", p.pid).add("how", how_ended(p.exit_status, text));
    const double age_s = first ? age_of_newest_set(arguments_.common.directory, owner_of(manifest_)) : -1;
    if (age_s >= 0) failure.add("lost_s", std::min(age_s, static_cast<double>(monotonic_ns() - began_ns_) / 1e9));
    note(failure);
  }

  void note(const HistoryEvent& event) { note_event(arguments_.common.directory, manifest_.job, event); }

  const RestartArguments& arguments_;
  const SetManifest& manifest_;
  const std::string& exchange_;
  const std::size_t members_;
  const std::int64_t began_ns_ = monotonic_ns();
  std::int64_t verified_ns_ = began_ns_;
  std::string epoch_, saved_as_;
  bool running_ = false;
};

// A near image that is not here, or damaged, comes from another host's copy, or is decoded from parities.
Status verify_near(const RestartArguments& arguments, const std::set<std::uint32_t>& members, SetManifest* manifest) {
  const std::string path = manifest->path, &directory = arguments.common.directory;
  // A copy is looked for before anything is made, so what is redundant is verified whole.
  if (!manifest->placement.store.is_redundant())
    return verify_with_progress(path, manifest, members,
                                arguments.far.far.empty() ? VerifyDepth::kForRestart : VerifyDepth::kEverything);
  SHADOWIB_TRY(ensure_keeper(directory, manifest->job, arguments.network));
  SHADOWIB_TRY(gather_images(directory, *manifest, members, false));
  const Status status = verify_with_progress(path, manifest, members);
  if (status.code() != Code::kCorrupt) return status;
  std::fprintf(stderr, "shadowib: %s; looking for a copy\n", status.text());
  SHADOWIB_TRY(gather_images(directory, *manifest, members, true));
  return verify_with_progress(path, manifest, members);
}

// What neither this host nor another one has may be in the far place.
Status verify_here(const RestartArguments& arguments, const std::set<std::uint32_t>& members, SetManifest* manifest) {
  const Status status = verify_near(arguments, members, manifest);
  if (status.code() != Code::kNotFound && status.code() != Code::kCorrupt) return status;
  std::size_t fetched = 0;
  if (const Status far = fetch_images(arguments.common.directory, *manifest, members, arguments.far, &fetched);
      !far.ok()) {
    std::fprintf(stderr, "shadowib: %s\n", status.text());
    return far;
  }
  return fetched == 0 ? status : verify_with_progress(manifest->path, manifest, members);
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

// Until the processes have ended.
Status restart_and_wait(const RestartArguments& arguments, SetManifest* manifest, const std::string& exchange,
                        bool shared, Told* told, RestartOptions* options, RestartPlace* place,
                        std::vector<RestartedProcess>* processes) {
  // Before the long work of verifying, and held until the processes have ended.
  if (!shared) SHADOWIB_TRY(place->take_alone(*manifest));
  SHADOWIB_TRY(verify_here(arguments, options->members, manifest));
  told->verified();
  // What stands in the way is told before anything is changed: the job is what it was, for a restart elsewhere.
  SHADOWIB_TRY(check_set_here(*manifest, options->members, wanted_backend(arguments), verbs_library()));
  options->report = [told](const std::string& line) { told->line(line); };
  SHADOWIB_TRY(
      choose_files(*manifest, options->members, arguments.files == "roll-back", options->report, &options->cut));
  options->others_cut = shared && arguments.files == "roll-back";
  const auto keep_store = [&arguments, manifest]() -> Status {
    const FarOptions& far = arguments.far;
    if (FarSettings settings; !far.far.empty() || !far.flush.empty()) {
      SHADOWIB_TRY(choose_far(far, arguments.common.directory, manifest->job, &settings));
      settings.from = manifest->number + 1;
      SHADOWIB_TRY(record_far(arguments.common.directory, manifest->job, settings));
    }
    const SetPlacement& placement = manifest->placement;
    std::string store, place;
    SHADOWIB_TRY(recorded_store(arguments.common.directory, manifest->job, &store, &place));
    if (!placement.store.is_near() || store == kAutoStore) return {};  // the job goes on as it was
    return record_store(arguments.common.directory, manifest->job,
                        {.spec = placement.store, .place = placement.place});
  };
  if (shared)
    SHADOWIB_TRY(place->share(*manifest, options->members, arguments.files));
  else
    place->choose(*manifest);
  told->began(place->epoch());
  if (shared) SHADOWIB_TRY(keep_store());
  if (shared) SHADOWIB_TRY(place->await_others(arguments.wait_s));
  SHADOWIB_TRY(fill_job(arguments, *manifest, exchange, place->epoch(), &options->job));
  if (shared)
    options->watch = [place] { return place->watch(); };
  else
    options->begin = [place, keep_store]() -> Status {
      SHADOWIB_TRY(place->begin());
      return keep_store();
    };
  SHADOWIB_TRY(restart_set(*manifest, *options, processes));
  return failure_of(exchange, place->epoch(), 0, *processes);
}

// A cluster's set, in the epoch that it was saved in. The command that recovers the job's clusters has started this
// one, and holds all locks.
Status restart_part(const RestartArguments& arguments, SetManifest* manifest, const std::string& exchange, Told* told,
                    std::vector<RestartedProcess>* processes) {
  const std::string epoch = present_epoch(arguments.common.directory, manifest->job);
  RestartOptions options;
  SHADOWIB_TRY(verify_here(arguments, {}, manifest));
  told->verified();
  told->began(epoch);
  SHADOWIB_TRY(check_set_here(*manifest, {}, wanted_backend(arguments), verbs_library()));
  options.report = [told](const std::string& line) { told->line(line); };
  SHADOWIB_TRY(choose_files(*manifest, {}, arguments.files == "roll-back", options.report, &options.cut));
  SHADOWIB_TRY(fill_job(arguments, *manifest, exchange, epoch, &options.job));
  options.begin = [&arguments, manifest, &exchange, &epoch]() -> Status {
    std::unique_ptr<Exchange> met;
    SHADOWIB_TRY(Exchange::open(exchange, false, &met));
    return meet_other_clusters(*met, epoch, arguments.part, manifest->cluster->record.cluster);
  };
  SHADOWIB_TRY(restart_set(*manifest, options, processes));
  return failure_of(exchange, epoch, arguments.part.number, *processes);
}

// `members`: none is all.
int restart_members(const RestartArguments& arguments, SetManifest manifest, const std::string& exchange,
                    std::set<std::uint32_t> members) {
  const Common& common = arguments.common;
  const bool shared = !members.empty() && members.size() < manifest.members.size();
  Told told(arguments, manifest, exchange, members.empty() ? manifest.members.size() : members.size());
  RestartOptions options;
  options.members = std::move(members);
  RestartPlace place(common.directory, exchange);
  if (arguments.workers >= 0) place.ask_for_workers(static_cast<unsigned>(arguments.workers));
  std::vector<RestartedProcess> processes;
  const Status status = arguments.part.number != 0 ? restart_part(arguments, &manifest, exchange, &told, &processes)
                                                   : restart_and_wait(arguments, &manifest, exchange, shared, &told,
                                                                      &options, &place, &processes);
  if (!status.ok()) return told.failed(status);
  const int exit_code = report(common, manifest, options.members, processes, told.saved_as());
  told.ended(processes, exit_code);
  return exit_code;
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

// Each host's command finds the set, and what the job was started with, in DIR.
int restart_on_hosts(const RestartArguments& arguments, const SetManifest& manifest) {
  const Common& common = arguments.common;
  std::vector<command_line::Host> hosts;
  if (const std::string why = command_line::parse_hosts(arguments.hosts, &hosts); !why.empty())
    return fail(common, Status::of(Code::kUsage, 0, "%.200s", why.c_str()));
  if (arguments.members || arguments.workers >= 0 || arguments.far.given() || common.json)
    return fail(common, Status(Code::kUsage, 0,
                               "--hosts does not go with --members, --workers, --json and options of far places"));
  Companies companies;
  if (Status s = find_companies(manifest, &companies); !s.ok()) return fail(common, s);
  std::error_code error;
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe", error).string(),
                                 "restart",
                                 std::filesystem::absolute(manifest.path, error).lexically_normal().string(),
                                 "--held",
                                 "--dir",
                                 common.directory,
                                 "--files",
                                 arguments.files,
                                 "--wait",
                                 std::to_string(arguments.wait_s),
                                 "--timeout",
                                 std::to_string(arguments.timeout_s)};
  if (arguments.lease_s > 0) words.insert(words.end(), {"--lease", std::to_string(arguments.lease_s)});
  if (!common.exchange.empty()) words.insert(words.end(), {"--exchange", common.exchange});
  if (!arguments.backend.empty()) words.insert(words.end(), {"--backend", arguments.backend});
  if (!arguments.network.empty()) words.insert(words.end(), {"--network", arguments.network});
  const std::string shell = !arguments.shell.empty() ? arguments.shell : environment("RSH");
  return run_shares(common, manifest.job, share_out(companies, hosts), shell.empty() ? "ssh" : shell, words,
                    arguments.lease_s);
}

// Of a set of portable images.
int restart_portable_set(const RestartArguments& arguments, SetManifest manifest) {
  const Common& common = arguments.common;
  if (arguments.members || !arguments.hosts.empty() || arguments.workers >= 0 || arguments.far.given() ||
      !arguments.backend.empty() || arguments.files != "keep")
    return fail(common, Status(Code::kUsage, 0,
                               "a set of portable programs is restarted with --program, --runner, --dir and --json "
                               "only"));
  const std::string exchange;
  Told told(arguments, manifest, exchange, manifest.members.size());
  PortableSet set;
  Status status = verify_with_progress(manifest.path, &manifest);
  if (status.ok()) status = read_portable_set(manifest, &set);
  std::vector<RestartedProcess> processes;
  if (status.ok()) {
    told.verified();
    told.line("restored");
    status = restart_portable(common, manifest, set, arguments.portable, &processes);
  }
  if (!status.ok()) return told.failed(status);
  bool good = true;
  Json list = Json::array();
  for (const RestartedProcess& p : processes) {
    char text[64];
    good = good && ended_well(p);
    if (!common.json) std::printf("pid %d: %s\n", p.pid, how_ended(p.exit_status, text));
    Json entry{{"member", p.member}, {"pid", p.pid}};
    entry["exit_code"] = WIFEXITED(p.exit_status) ? Json(WEXITSTATUS(p.exit_status)) : Json(nullptr);
    entry["signal"] = WIFSIGNALED(p.exit_status) ? Json(WTERMSIG(p.exit_status)) : Json(nullptr);
    list.push_back(entry);
  }
  if (common.json) print_json({{"set", manifest.path}, {"ok", good}, {"processes", list}});
  return good ? 0 : kRestartedProcessFailed;
}

// Options that each cluster's set is restarted with.
std::vector<std::string> words_for_clusters(const RestartArguments& arguments) {
  const Common& common = arguments.common;
  std::vector<std::string> words{"--dir",         common.directory, "--files",
                                 arguments.files, "--timeout",      std::to_string(arguments.timeout_s)};
  if (!common.exchange.empty()) words.insert(words.end(), {"--exchange", common.exchange});
  if (!arguments.backend.empty()) words.insert(words.end(), {"--backend", arguments.backend});
  if (!arguments.network.empty()) words.insert(words.end(), {"--network", arguments.network});
  return words;
}

int restart_clusters(const RestartArguments& arguments) {
  const Common& common = arguments.common;
  if (!arguments.set.empty() || arguments.members || !arguments.hosts.empty() || arguments.workers >= 0 ||
      arguments.far.given())
    return fail(common, Status(Code::kUsage, EINVAL,
                               "--job names the clusters' own sets: leave out SET, --members, --hosts, --workers and "
                               "options of far places"));
  return recover(common, {.job = arguments.job,
                          .clusters = arguments.clusters,
                          .fenced = arguments.fenced,
                          .timeout_s = arguments.timeout_s,
                          .backend = wanted_backend(arguments),
                          .verbs_library = verbs_library(),
                          .words = words_for_clusters(arguments)});
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
  if (arguments.set.empty() || !arguments.clusters.empty() || arguments.fenced)
    return fail(common, Status(Code::kUsage, EINVAL,
                               arguments.set.empty() ? "which SET? Or, for clusters of a federation, --job J"
                                                     : "--cluster and --fenced need --job J, and no SET"));
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
  if (!arguments.hosts.empty()) return restart_on_hosts(arguments, manifest);
  std::string exchange = unsettled_exchange(exchange_of(common, manifest.job));
  if (Status s = settle_exchange(job_paths(common.directory, manifest.job).password, &exchange); !s.ok())
    return fail(common, s);
  if (arguments.part.number != 0) {
    // All of the set, here.
  } else if (arguments.members) {
    if (Status s = parse_members(*arguments.members, manifest, &members); !s.ok()) return fail(common, s);
  } else {
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
      ->not_empty("a cluster")
      ->type_name("LIST");
  command->add_flag("--fenced", arguments->fenced,
                    "With --job: members that do not end are lost for good, and a\nperson vouches for that");
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
                   "Where: HOST:SLOTS,... A remote shell starts each host's\nmembers; all share DIR")
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
