// shadowib checkpoint: saves a job while it runs.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <thread>

#include "hooks/command/coordinator.h"
#include "hooks/federation/record_json.h"
#include "hooks/job/cluster.h"
#include "hooks/job/near_directory.h"
#include "hooks/job/phase.h"
#include "hooks/store/near_place.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/processes.h"
#include "shadowib/cli/clc_sets.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/far_flush.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/metrics.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/portable_checkpoint.h"
#include "shadowib/cli/portable_job.h"
#include "shadowib/cli/save_option.h"
#include "shadowib/cli/sets.h"
#include "shadowib/cli/store_options.h"
#include "shadowib/cli/store_rates.h"
#include "shadowib/cli/wait_option.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

struct CheckpointArguments {
  Common common;
  std::string job;
  std::string cluster;
  bool kill = false, incremental = false;
  double timeout_s = 60;
  unsigned keep = 0;
  std::string metrics, save, compress, wait;
  bool waits_for_far() const { return wait == kWaitFar; }
  StoreOptions store;
  FarOptions far;
};

constexpr char kCheckpointExamples[] =
    "Examples:\n"
    "  shadowib checkpoint demo             the job goes on afterwards\n"
    "  shadowib checkpoint                  the only job alive in --dir\n"
    "  shadowib checkpoint demo --store mem:single   images stay in the memory of the job's hosts\n"
    "  shadowib checkpoint demo --far dir:/archive --wait far   return when the set is there, too\n"
    "  shadowib checkpoint demo --cluster east       that cluster of a federation, while the others go on\n"
    "  set=$(shadowib checkpoint demo --kill | tail -n 1) && shadowib restart \"$set\"\n\n"
    "The last line of standard output is the path of the set. Nothing of a checkpoint that fails is left, and the "
    "job\n"
    "runs on unharmed.\n";

// What the images being written hold so far, from their directory: the members themselves are busy. 0 of images that
// stay near: other hosts have some.
std::uint64_t staged_bytes(const std::string& directory, const std::string& job) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (const auto& set : fs::directory_iterator(sets_path(directory), error)) {
    std::string owner;
    std::uint32_t number = 0;
    if (!parse_hidden_name(set.path().filename(), &owner, &number) || owner != job) continue;
    for (const auto& file : fs::directory_iterator(set.path(), error))
      if (file.path().extension() == ".pages")
        continue;  // an earlier image
      else if (std::uintmax_t size = file.file_size(error); !error)
        bytes += size;
  }
  return bytes;
}

// Draws from a thread of its own, as run_checkpoint() speaks up on changes of phase only.
class Watcher {
 public:
  explicit Watcher(const CheckpointOptions& options) : options_(options), thread_([this] { draw(); }) {}
  ~Watcher() {
    ended_.store(1);
    futex_wake(&ended_, 1);
    thread_.join();
  }
  void set(const CheckpointProgress& progress) {
    phase_ = progress.phase;
    members_ = static_cast<int>(progress.members);
    saved_ = static_cast<int>(progress.members_saved);
  }

 private:
  void draw() {
    Progress progress;
    while (ended_.load() == 0) {
      std::string text = "checkpoint of " + options_.job + ": " + phase_text(phase_).doing;
      if (phase_ >= number_of(Phase::kSave))
        text += ", " + std::to_string(saved_) + " of " + std::to_string(members_) + " members saved";
      progress.step(text);
      if (phase_ >= number_of(Phase::kSave))
        progress.update(staged_bytes(options_.directory, set_owner(options_.job, options_.cluster)), 0);
      futex_wait(&ended_, 0, 100000000);
    }
  }
  const CheckpointOptions& options_;
  std::atomic<int> phase_{0}, members_{0}, saved_{0};
  std::atomic<std::uint32_t> ended_{0};
  std::thread thread_;
};

Json report_json(const CheckpointReport& report) {
  Json members = Json::array();
  for (const MemberReport& m : report.members) {
    Json member{{"index", m.index},
                {"pid", m.pid},
                {"host", m.host},
                {"comm", m.comm},
                {"settle_ns", m.settle_ns},
                {"save_ns", m.save_ns},
                {"stopped_ns", m.stopped_ns},
                {"bytes", m.bytes}};
    if (!m.save.empty()) member["save"] = m.save;
    if (!m.why_stopped.empty()) member["why_stopped"] = m.why_stopped;
    if (report.incremental) member["borrowed_bytes"] = m.borrowed_bytes;
    if (report.incremental && !m.why_whole.empty()) member["why_whole"] = m.why_whole;
    if (!m.compression.empty()) member["compression"] = m.compression;
    if (!m.compression.empty()) member["page_bytes"] = m.page_bytes;
    if (!m.why_plain.empty()) member["why_plain"] = m.why_plain;
    members.push_back(member);
  }
  Json json{{"set", report.set_path},
            {"set_id", report.set_id},
            {"number", report.number},
            {"generation", report.generation},
            {"members", members}};
  if (report.cluster) {
    json["cluster"] = federation::encode_record(report.cluster->record, report.cluster->name);
    json["restarts_alone"] = false;
  }
  for (const StoreOption& option : report.considered)
    json["considered"].push_back(
        {{"store", option.store.text()}, {"seconds", option.seconds}, {"lacks", option.shortage}});
  if (!report.why_stopped.empty()) json["why_stopped"] = report.why_stopped;
  if (!report.store.is_near()) return json;
  json["store"] = report.store.text();
  json["near"] = near_set_path(report.near_place, report.job, report.set_id);
  return json;
}

void print_report(const CheckpointReport& report) {
  Table table({"member", "pid", "command", "image", "settled in", "saved in", "stopped for"});
  for (const MemberReport& m : report.members)
    table.add({std::to_string(m.index), std::to_string(m.pid), m.comm, human_bytes(m.bytes), human_time(m.settle_ns),
               human_time(m.save_ns), human_time(m.stopped_ns)});
  table.print();
  for (const StoreOption& option : report.considered)
    if (option.ran_out)
      std::fprintf(stderr, "shadowib: store %s ran out of space; the set is in %s\n", option.store.text().c_str(),
                   report.store.text().c_str());
  if (report.compressed_for_room)
    std::fprintf(stderr, "shadowib: no store has room for plain images: store auto compresses them (%s)\n",
                 compression_name(report.compression));
  if (!report.considered.empty() && !report.store.is_near())
    std::fprintf(stderr, "shadowib: store auto has chosen central; --json tells what other stores lack\n");
  if (!report.why_stopped.empty())
    std::fprintf(stderr, "shadowib: all members stood while their images were written, at a second attempt: %s\n",
                 report.why_stopped.c_str());
  for (const MemberReport& m : report.members)
    if (!m.why_stopped.empty())
      std::fprintf(stderr, "shadowib: member %u stood while its image was written: %s\n", m.index,
                   m.why_stopped.c_str());
  if (report.incremental)
    for (const MemberReport& m : report.members)
      if (!m.why_whole.empty())
        std::fprintf(stderr, "shadowib: member %u wrote all its pages: %s\n", m.index, m.why_whole.c_str());
  for (const MemberReport& m : report.members)
    if (!m.why_plain.empty())
      std::fprintf(stderr, "shadowib: the image of member %u is not compressed: %s\n", m.index, m.why_plain.c_str());
  if (report.store.is_near())
    std::fprintf(stderr, "shadowib: the images stay on the members' hosts (%s), in %s\n", report.store.text().c_str(),
                 near_set_path(report.near_place, report.job, report.set_id).c_str());
  if (report.cluster) std::fprintf(stderr, "shadowib: %s\n", note_on_clc(*report.cluster, report.job).c_str());
  std::printf("%s\n", report.set_path.c_str());
}

// The slowest member's time in each phase, and the time of all: what the program stood for. A CLC is an event of its
// own: nothing that is about sets of the job may take it for one.
HistoryEvent committed_event(const CheckpointReport& report, std::int64_t took_ns, bool kill) {
  std::uint64_t bytes = 0, page_bytes = 0;  // the pages before they were compressed
  std::string compression;
  std::int64_t stopped_ns = 0;
  std::vector<std::pair<std::string, std::uint64_t>> phases;
  for (const MemberReport& m : report.members) {
    bytes += m.bytes;
    page_bytes += m.page_bytes;
    if (!m.compression.empty()) compression = m.compression;
    // A program that is saved forked goes on before the commit.
    stopped_ns = std::max(stopped_ns, m.stopped_ns + (m.save.empty() ? report.commit_ns : 0));
    for (std::size_t i = 0; i < m.phases.size(); ++i) {
      if (i == phases.size()) phases.push_back(m.phases[i]);
      phases[i].second = std::max(phases[i].second, m.phases[i].second);
    }
  }
  HistoryEvent event(report.cluster ? "clc" : "checkpoint");
  event.add("set", fs::path(report.set_path).filename().string())
      .add("number", report.number)
      .add("generation", report.generation)
      .add("members", report.members.size())
      .add("bytes", bytes)
      .add("kill", kill)
      .add("took_ms", milliseconds(took_ns))
      .add("stopped_ms", milliseconds(stopped_ns));
  for (const auto& [name, ns] : phases)
    event.add((name + "_ms").c_str(), milliseconds(static_cast<std::int64_t>(ns)));
  if (report.store.is_near()) event.add("store", report.store.text());
  if (report.cluster)
    event.add("cluster", report.cluster->name)
        .add("sn", report.cluster->record.sn)
        .add("forced", report.cluster->record.forced);
  const bool all_tell = std::none_of(report.members.begin(), report.members.end(),
                                     [](const MemberReport& m) { return m.compression.empty(); });
  if (all_tell && page_bytes != 0) event.add("compression", compression).add("page_bytes", page_bytes);
  return event.add("commit_ms", milliseconds(report.commit_ns));
}

// `cluster`: of a CLC.
HistoryEvent failed_event(const Status& status, std::int64_t took_ns, const std::string& cluster) {
  HistoryEvent event(cluster.empty() ? "checkpoint_failed" : "clc_failed");
  if (!cluster.empty()) event.add("cluster", cluster);
  return event.add("code", static_cast<int>(status.code()))
      .add("error", status.text())
      .add("took_ms", milliseconds(took_ns));
}

// `of_clc`: those of the clusters, rather than those of the whole job.
Status remove_old_sets(const Common& common, const std::string& job, bool of_clc, unsigned keep) {
  ClcsToRemove old;
  if (keep == 0) return {};
  SHADOWIB_TRY(of_clc ? clcs_to_remove(common, job, keep, false, &old)
                      : old_sets(common.directory, job, keep, &old.paths));
  if (!old.why.empty()) std::fprintf(stderr, "shadowib: all CLCs stay: %s\n", old.why.c_str());
  for (const std::string& path : old.paths) {
    const Status status = remove_set(path);
    if (status.code() != Code::kBusy) SHADOWIB_TRY(status);
    std::fprintf(stderr, "shadowib: %s%s\n", status.ok() ? "removed " : "",
                 status.ok() ? path.c_str() : status.text());
  }
  return {};
}

// What the checkpoint tells of transfers, for the next one's choice.
void note_rates(const CheckpointOptions& options, const CheckpointReport& report) {
  const StoreRates rates = moved_by(options.choice->rates, report);
  if (Status s = place_file(rates_path(options.directory, options.job), encode_rates(rates), false); !s.ok())
    std::fprintf(stderr, "shadowib: the rates of stores are not recorded: %s\n", s.text());
}

Status take_store(const StoreOptions& given, bool says_compression, CheckpointOptions* options) {
  ChosenStore chosen;
  SHADOWIB_TRY(choose_store(given, options->directory, options->job, &chosen));
  SHADOWIB_TRY(check_store_here(chosen));
  options->store = chosen.spec;
  options->near_place = chosen.place;
  if (!chosen.automatic) return {};
  StoreChoice choice{.survive = chosen.survive, .rates = read_rates(options->directory, options->job)};
  choice.may_compress = !says_compression;
  SHADOWIB_TRY(places_of(chosen, &choice.mem_place, &choice.disk_place));
  SetManifest newest;
  const std::string name = newest_set(options->directory, options->job);
  if (!name.empty() && read_manifest(sets_path(options->directory) + "/" + name, &newest).ok())
    choice.newest = newest.placement.store.tier;
  options->choice = std::move(choice);
  return {};
}

// Started by a member, or in the shell that the program was started in.
bool in_program_session(const CheckpointReport& report) {
  const std::string here = host_name();
  return std::any_of(report.members.begin(), report.members.end(),
                     [&](auto& member) { return member.host == here && ::getsid(member.pid) == ::getsid(0); });
}

// A set that is due goes to the far place. The hosts may be taken away after --kill, so the command waits for it. The
// set is committed: a flush that fails is told, and is no failure but with --wait far.
Status flush_after(const CheckpointArguments& arguments, const FarSettings& settings,
                   const CheckpointReport& report) {
  const std::string& directory = arguments.common.directory;
  if (arguments.waits_for_far()) return flush_and_wait(directory, report.set_path, settings);
  if (!settings.is_due(report.number)) return {};
  // Options that are given are for this set alone.
  const bool given = !arguments.far.far.empty() || !arguments.far.flush.empty();
  Status status;
  if (arguments.kill && arguments.wait != kWaitNear) {
    FarSettings alone = settings;
    alone.from = report.number;
    status = flush_due(directory, report.job, alone, true);
  } else if (given) {
    char rate[40], timeout[40];
    std::snprintf(rate, sizeof(rate), "%.17g", settings.rate);
    std::snprintf(timeout, sizeof(timeout), "%.17g", settings.timeout_s);
    std::vector<std::string> words{report.set_path,      "--wait",        "--far",
                                   settings.spec.text(), "--far-timeout", timeout};
    if (settings.rate > 0) words.insert(words.end(), {"--flush-rate", rate});
    status = start_flush(directory, std::move(words), in_program_session(report));
  } else {
    status = start_flush(directory, {report.job, "--due"}, in_program_session(report));
  }
  if (!status.ok())
    std::fprintf(stderr, "shadowib: the set is not in %s: %s\n", settings.spec.text().c_str(), status.text());
  return {};
}

// With --kill this says that the job has ended, so members hear of it next.
void note_commit(const CheckpointArguments& arguments, const CheckpointOptions& options,
                 const CheckpointReport& report, std::int64_t took_ns) {
  note_event(options.directory, options.job, committed_event(report, took_ns, options.kill));
  keep_metrics(arguments.metrics, options.directory, options.job);
}

// The history has said so already.
void note_no_end(const CheckpointOptions& options, const CheckpointReport& report, const Status& status) {
  note_event(options.directory, options.job,
             HistoryEvent("kill_failed")
                 .add("set", fs::path(report.set_path).filename().string())
                 .add("number", report.number)
                 .add("error", status.text()));
}

// Follows each commit, and may take long. With --kill it comes before the members end: a restarted job's command,
// started by a member, ends with the members' pid namespace. It may be broken off, and then the job goes on. Returns
// what --wait far has waited for.
Status follow_commit(const CheckpointArguments& arguments, const CheckpointOptions& options, const FarSettings& far,
                     const CheckpointReport& report) {
  Status flushed;
  if (options.choice) note_rates(options, report);
  if (!report.cluster) flushed = flush_after(arguments, far, report);
  // The new set is what counts: that an old one stays is told, and no failure.
  if (Status s = remove_old_sets(arguments.common, options.job, report.cluster.has_value(), arguments.keep); !s.ok())
    std::fprintf(stderr, "shadowib: --keep %u: %s\n", arguments.keep, s.text());
  return flushed;
}

// A CLC does not do all that a checkpoint of the whole job does. Without --cluster anything goes.
Status judge_clc(const CheckpointArguments& arguments, const CheckpointOptions& options) {
  if (arguments.cluster.empty()) return {};
  if (!valid_cluster_name(arguments.cluster))
    return Status::of(Code::kUsage, EINVAL, "--cluster '%.60s': %.100s", arguments.cluster.c_str(), kClusterNameRule);
  if (arguments.kill)
    return Status(Code::kUsage, EINVAL,
                  "--kill does not go with --cluster: it ends all of a job; leave out --cluster");
  if (arguments.save == "forked")
    return Status(Code::kUsage, EINVAL,
                  "--save forked does not go with --cluster: its members go on once their checkpoint is committed");
  if (options.store.is_near() || options.choice)
    return Status(Code::kUsage, EINVAL,
                  "a checkpoint of one cluster goes to the central store: give --store central with --cluster");
  if (arguments.far.given())
    return Status(Code::kUsage, EINVAL,
                  "a checkpoint of one cluster goes to no far place: leave out --far and --flush");
  if (arguments.waits_for_far())
    return Status(Code::kUsage, EINVAL, "a checkpoint of one cluster goes to no far place: leave out --wait");
  return {};
}

// Portable images are written by the programs themselves, into DIR.
Status judge_portable(const CheckpointArguments& arguments) {
  if (arguments.cluster.empty() && !arguments.incremental && arguments.save.empty() && arguments.compress.empty() &&
      !arguments.store.given() && !arguments.far.given() && !arguments.waits_for_far())
    return {};
  return Status(Code::kUsage, EINVAL,
                "a job of portable programs is saved with --kill, --timeout, --keep and --metrics only");
}

int checkpoint_portable(const CheckpointArguments& arguments, CheckpointOptions& options) {
  const Common& common = arguments.common;
  if (Status s = judge_portable(arguments); !s.ok()) return fail(common, s);
  options.kill = arguments.kill;
  const std::int64_t began_ns = monotonic_ns();
  const FarSettings nowhere;
  PortableCheckpoint portable{.directory = common.directory,
                              .job = options.job,
                              .kill = arguments.kill,
                              .timeout_ms = static_cast<int>(arguments.timeout_s * 1000),
                              .committed = {},
                              .at_kill = {}};
  std::int64_t took_ns = 0;
  portable.committed = [&](const CheckpointReport& committed) {
    took_ns = monotonic_ns() - began_ns;
    if (!options.kill) note_commit(arguments, options, committed, took_ns);
    (void)follow_commit(arguments, options, nowhere, committed).ok();  // it goes to no far place
  };
  portable.at_kill = [&](const CheckpointReport& committed) { note_commit(arguments, options, committed, took_ns); };
  CheckpointReport report;
  if (const Status status = save_portable(portable, &report); !status.ok()) {
    if (status.code() != Code::kNotFound && status.code() != Code::kBusy)
      (void)append_history(common.directory, options.job, failed_event(status, monotonic_ns() - began_ns, "")).ok();
    return fail(common, status);
  }
  if (common.json)
    print_json(report_json(report));
  else
    std::printf("%s\n", report.set_path.c_str());
  return 0;
}

// The set is told in any case: it stays. `flushed`: what --wait far has waited for.
int tell(const CheckpointArguments& arguments, const CheckpointReport& report, const FarSettings& far,
         const Status& flushed) {
  if (!arguments.common.json) {
    print_report(report);
    return flushed.ok() ? 0 : fail(arguments.common, flushed);
  }
  Json json = report_json(report);
  if (!flushed.ok()) {
    json["error"] = flushed.text();
    json["code"] = static_cast<int>(flushed.code());
    std::fprintf(stderr, "shadowib: %s\n", flushed.text());
  } else if (arguments.waits_for_far()) {
    json["far"] = far.spec.text();
  }
  print_json(json);
  return static_cast<int>(flushed.code());
}

int checkpoint(CheckpointArguments& arguments) {
  Common& common = arguments.common;
  if (Status s = resolve(&common); !s.ok()) return fail(common, s);
  CheckpointOptions options;
  if (Status s = choose_job(common.directory, arguments.job, &options.job); !s.ok()) return fail(common, s);
  options.directory = common.directory;
  if (is_portable_job(common.directory, options.job)) return checkpoint_portable(arguments, options);
  options.directory = common.directory;
  options.exchange = exchange_of(common, options.job);
  if (Status s = settle_exchange(job_paths(common.directory, options.job).password, &options.exchange); !s.ok())
    return fail(common, s);
  if (Status s = take_store(arguments.store, says_compression(arguments.compress), &options); !s.ok())
    return fail(common, s);
  if (Status s = judge_clc(arguments, options); !s.ok()) return fail(common, s);
  options.cluster = arguments.cluster;
  FarSettings far;
  if (Status s = choose_far(arguments.far, common.directory, options.job, &far); !s.ok()) return fail(common, s);
  if (!arguments.far.far.empty())
    if (Status s = far.open()->check(); !s.ok()) return fail(common, s);
  if (arguments.waits_for_far())
    if (Status s = judge_wait_far(common.directory, options.job, far); !s.ok()) return fail(common, s);
  options.keepers = far.known && far.every > 0;
  if (Status s = choose_save(arguments.save, !options.store.is_near() && !options.choice, &options.save); !s.ok())
    return fail(common, s);
  if (Status s = choose_incremental(arguments.incremental, !options.store.is_near() && !options.choice,
                                    far.known && far.every > 0, &options.incremental);
      !s.ok())
    return fail(common, s);
  if (Status s = choose_compression(arguments.compress, &options.compression); !s.ok()) return fail(common, s);
  options.kill = arguments.kill;
  options.timeout_ms = static_cast<int>(arguments.timeout_s * 1000);
  CheckpointReport report;
  Status status, flushed;
  const std::int64_t began_ns = monotonic_ns();
  std::int64_t until_commit_ns = 0;
  bool says_end = false;  // the history
  {
    auto watcher = std::make_unique<Watcher>(options);
    options.progress = [&](const CheckpointProgress& progress) { watcher->set(progress); };
    options.before_kill = [&](const CheckpointReport& committed) {
      watcher.reset();  // or it would draw over what follows
      until_commit_ns = monotonic_ns() - began_ns;
      flushed = follow_commit(arguments, options, far, committed);
    };
    options.at_kill = [&](const CheckpointReport& committed) {
      note_commit(arguments, options, committed, until_commit_ns);
      says_end = true;
    };
    options.at_no_end = [&](const CheckpointReport& committed, const Status& why) {
      note_no_end(options, committed, why);
    };
    status = run_checkpoint(options, &report);
  }
  if (status.code() == Code::kNotFound) {
    // A job that starts may have no epoch and no exchange yet.
    const Status why = why_no_member(common.directory, options.job);
    if (status.error() == ESRCH || why.code() == Code::kBusy) status = why;
  }
  const std::int64_t took_ns = monotonic_ns() - began_ns;
  if (!status.ok()) {
    if (!says_end && status.code() != Code::kNotFound && status.code() != Code::kBusy)
      (void)append_history(common.directory, options.job, failed_event(status, took_ns, options.cluster)).ok();
    keep_metrics(arguments.metrics, common.directory, options.job);
    return fail(common, status);
  }
  if (!options.kill) {
    note_commit(arguments, options, report, took_ns);
    flushed = follow_commit(arguments, options, far, report);
  }
  return tell(arguments, report, far, flushed);
}

}  // namespace

void add_checkpoint(Command& program) {
  auto arguments = std::make_shared<CheckpointArguments>();
  Command* command = program.add_subcommand("checkpoint", "Save a job while it runs");
  command->add_option("J", arguments->job, "The job; may be left out if only one is alive")->not_empty("a job");
  command
      ->add_option("--cluster", arguments->cluster, "Save one cluster of a federation alone, while the others go on")
      ->not_empty("a cluster")
      ->type_name("NAME");
  command->add_flag("--kill", arguments->kill, "End the job's processes (SIGKILL) once the set is committed");
  command->add_option("--timeout", arguments->timeout_s, "Give up after S seconds; default 60")
      ->between(0.001, 2000000, "seconds")
      ->type_name("S");
  command
      ->add_option("--keep", arguments->keep, "Then remove all but the job's N newest sets; by default all are kept")
      ->between(1, 1000000, "sets")
      ->type_name("N");
  command
      ->add_option("--metrics", arguments->metrics, "Then write the job's figures to FILE in Prometheus' text format")
      ->not_empty("a file")
      ->type_name("FILE");
  add_save_option(command, &arguments->save);
  add_incremental_option(command, &arguments->incremental);
  add_compress_option(command, &arguments->compress);
  add_store_options(command, &arguments->store);
  add_far_options(command, &arguments->far, true);
  add_wait_option(command, &arguments->wait);
  add_common(command, &arguments->common);
  command->footer(kCheckpointExamples);
  command->callback([arguments] { return checkpoint(*arguments); });
}

}  // namespace shadowib::cli
