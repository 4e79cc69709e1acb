// shadowib gc: removes old sets, what interrupted checkpoints left, and the directories of dead jobs.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "hooks/job/protocol.h"
#include "hooks/store/keeper_client.h"
#include "hooks/store/store.h"
#include "shadowib/base/lock.h"
#include "shadowib/base/this_host.h"
#include "shadowib/cli/clc_sets.h"
#include "shadowib/cli/common.h"
#include "shadowib/cli/end_on_request.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/far_look.h"
#include "shadowib/cli/far_turns.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/near_sets.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/sets.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kCollectNs = 30'000'000'000;

constexpr unsigned kAllKept = ~0u;  // --keep was not given

struct GcArguments {
  Common common;
  std::string job;  // "": all
  unsigned keep = kAllKept, keep_far = 0;
  bool dry_run = false;
};

constexpr char kGcExamples[] =
    "Examples:\n"
    "  shadowib gc --keep 2                 the two newest sets of every job stay\n"
    "  shadowib gc --keep 2 --dry-run       only tell what would go\n"
    "  shadowib gc demo                     of demo's clusters go the checkpoints that no failure needs\n\n"
    "Removes older sets, what interrupted checkpoints left, and the directories of jobs that are dead. Of a job that "
    "is\n"
    "alive older sets go, and what it left in its exchange before it was restarted. Sets that cannot be read are "
    "named\n"
    "and left alone. Images that stay near their members go from this host, and from hosts that have a keeper of "
    "the\n"
    "job. On each other host that has some run gc there.\n";

class Collector {
 public:
  explicit Collector(const GcArguments& arguments) : arguments_(arguments), directory_(arguments.common.directory) {}

  Status sets() {
    std::vector<std::string> old;
    if (arguments_.keep != kAllKept) SHADOWIB_TRY(old_sets(directory_, arguments_.job, arguments_.keep, &old));
    SHADOWIB_TRY(remove_sets(old));
    return clcs();
  }

  // Of each federation.
  Status clcs() {
    std::set<std::string>& jobs = with_clcs_;
    std::vector<ListedSet> all;
    SHADOWIB_TRY(list_sets(directory_, &all));
    for (const ListedSet& set : all)
      if (set.status.ok() && set.manifest.cluster) jobs.insert(set.manifest.job);
    for (const std::string& job : jobs) {
      if (!arguments_.job.empty() && job != arguments_.job) continue;
      std::optional<unsigned> keep;
      if (arguments_.keep != kAllKept) keep = arguments_.keep;
      ClcsToRemove found;
      SHADOWIB_TRY(clcs_to_remove(arguments_.common, job, keep, arguments_.dry_run, &found));
      if (!found.why.empty())
        std::fprintf(stderr, "shadowib: job %s: all committed checkpoints of clusters stay: %s\n", job.c_str(),
                     found.why.c_str());
      SHADOWIB_TRY(remove_sets(found.paths));
    }
    return {};
  }

  // Nothing goes from a far place unless it is asked for.
  Status far() {
    if (arguments_.keep_far == 0) return {};
    for (const std::string& job : jobs_in_far(directory_))
      SHADOWIB_TRY(remove_far_sets(directory_, job, arguments_.keep_far, arguments_.dry_run,
                                   [this](const std::string& what) { note("far", what); }));
    return {};
  }

  // Images that belong to no set: here, and by their keepers on other hosts.
  Status near() {
    std::vector<std::string> gone;
    SHADOWIB_TRY(collect_near_images(directory_, "", arguments_.dry_run, &gone));
    for (const std::string& path : gone) note("images", path);
    for (const std::string& job : jobs_in(directory_))
      for (const KeeperInfo& keeper : live_keepers(directory_, job)) {
        if (keeper.host == shadowib::this_host()) continue;
        std::vector<std::string> there;
        if (const Status s =
                ask_to_collect(directory_, job, keeper, arguments_.dry_run, monotonic_ns() + kCollectNs, &there);
            !s.ok())
          std::fprintf(stderr, "shadowib: images on host %s may stay: %s\n", keeper.name.c_str(), s.text());
        for (const std::string& path : there) note("images", keeper.name + ":" + path);
      }
    return {};
  }

  Status staging() {
    std::vector<StoredSet> stored;
    std::vector<std::string> stale;
    SHADOWIB_TRY(open_directory_store(directory_)->list(&stored));
    for (const StoredSet& set : stored) {
      const std::string job = job_of_owner(directory_, set.job);
      if (set.committed || (!arguments_.job.empty() && job != arguments_.job)) continue;
      if (!any_checkpoint_running(set.job) && !FetchTurn::taken(directory_, job)) stale.push_back(set.path);
    }
    for (const std::string& path : stale)
      SHADOWIB_TRY(remove("staging", path, [](const std::string& p) { return open_store_of(p)->discard(p); }));
    return {};
  }

  Status jobs() {
    std::string who;
    for (const std::string& job : jobs_in(directory_)) {
      // A supervised job may be dead for a moment.
      if (job_in_use(directory_, job, &who) || is_supervised(directory_, job)) {
        SHADOWIB_TRY(epochs(job, false));
        continue;
      }
      if (!live_keepers(directory_, job).empty()) {  // its hosts have images, or had a moment ago
        std::fprintf(stderr, "shadowib: job %s has keepers; its directory stays\n", job.c_str());
        continue;
      }
      if (has_clcs(job)) {  // the exchange says which of them count
        std::fprintf(stderr, "shadowib: job %s has checkpoints of clusters; its directory stays until gc --keep 0\n",
                     job.c_str());
        continue;
      }
      // Its history stays, and is not to depend on what goes.
      if (!arguments_.dry_run) settle_end_on_request(arguments_.common, job);
      RemovalLocks locks;  // of nobody else from here on: it may just be restarted
      if (!arguments_.dry_run && !locks.take(directory_, job, &who)) continue;
      // One in the job's own directory goes with that.
      if (exchange_of(arguments_.common, job) != "dir:" + job_paths(directory_, job).top + "/x")
        if (Status s = epochs(job, true); !s.ok())
          std::fprintf(stderr, "shadowib: what job %s left in its exchange stays: %s\n", job.c_str(), s.text());
      SHADOWIB_TRY(remove("job", job_paths(directory_, job).top, [](const std::string& path) {
        std::error_code error;
        fs::remove_all(path, error);
        return error ? file_error(error.value(), "remove", path) : Status();
      }));
    }
    return {};
  }

  // What a job has left in its exchange: all of it if it is dead.
  Status epochs(const std::string& job, bool dead) {
    std::string exchange = exchange_of(arguments_.common, job);
    std::vector<std::string> epochs = earlier_epochs(directory_, job);
    if (dead) epochs.push_back(present_epoch(directory_, job));
    std::erase(epochs, "");
    if (!epochs.empty()) SHADOWIB_TRY(settle_exchange(job_paths(directory_, job).password, &exchange));
    for (const std::string& epoch : epochs)
      SHADOWIB_TRY(remove("epoch", Exchange::shown(exchange) + "/" + epoch,
                          [&](const std::string&) { return remove_epoch(directory_, job, exchange, epoch); }));
    return {};
  }

  // A program that has never joined leaves no more than the event of its start.
  Status histories() {
    std::error_code error;
    for (const std::string& job : jobs_with_history(directory_)) {
      if (fs::exists(job_paths(directory_, job).top, error) || !only_started(directory_, job)) continue;
      SHADOWIB_TRY(remove("history", history_path(directory_, job), [](const std::string& path) {
        std::error_code failed;
        fs::remove_all(path, failed);
        return failed ? file_error(failed.value(), "remove", path) : Status();
      }));
    }
    return {};
  }

  const Json& removed() const { return removed_; }

 private:
  Status remove_sets(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      const Status status = remove("set", path, [](const std::string& p) { return remove_set(p); });
      if (status.code() != Code::kBusy) SHADOWIB_TRY(status);
      if (!status.ok()) std::fprintf(stderr, "shadowib: left alone: %s\n", status.text());
    }
    return {};
  }

  // "a.b" may be a job, or cluster b of job a: a job's record of its clusters is not there at each moment.
  bool any_checkpoint_running(const std::string& owner) const {
    for (std::size_t end = owner.size(); end != std::string::npos && end > 0; end = owner.rfind('.', end - 1))
      if (checkpoint_running(directory_, owner.substr(0, end))) return true;
    return false;
  }

  // After sets().
  bool has_clcs(const std::string& job) const {
    std::vector<ListedSet> all;
    return with_clcs_.contains(job) && list_sets(directory_, &all).ok() &&
           std::any_of(all.begin(), all.end(), [&job](const ListedSet& set) {
             return set.status.ok() && set.manifest.cluster && set.manifest.job == job;
           });
  }

  template <typename Remove>
  Status remove(const char* kind, const std::string& path, Remove how) {
    if (!arguments_.dry_run) SHADOWIB_TRY(how(path));
    note(kind, path);
    return {};
  }

  void note(const char* kind, const std::string& path) {
    removed_.push_back({{"kind", kind}, {"path", path}});
    if (!arguments_.common.json)
      std::printf("%s %s %s\n", arguments_.dry_run ? "would remove" : "removed", kind, path.c_str());
  }

  const GcArguments& arguments_;
  const std::string directory_;
  std::set<std::string> with_clcs_;  // jobs that had CLCs
  Json removed_ = Json::array();
};

int gc(GcArguments& arguments) {
  const bool one = !arguments.job.empty();
  if (one && arguments.keep_far != 0)
    return fail(arguments.common,
                Status(Code::kUsage, EINVAL,
                       "--keep-far goes with no job: far places are collected for all jobs at once; leave out J"));
  if (!one && arguments.keep == kAllKept)
    return fail(arguments.common,
                Status(Code::kUsage, EINVAL, "--keep N is needed, unless a job with clusters is named"));
  if (Status s = resolve(&arguments.common); !s.ok()) return fail(arguments.common, s);
  if (Status s = require_directory(arguments.common); !s.ok()) return fail(arguments.common, s);
  if (std::string job; one)
    if (Status s = choose_job(arguments.common.directory, arguments.job, &job); !s.ok())
      return fail(arguments.common, s);
  Collector collector(arguments);
  if (!arguments.dry_run)
    for (const std::string& job : jobs_with_history(arguments.common.directory))
      if (Status s = pack_history(arguments.common.directory, job); !s.ok())
        std::fprintf(stderr, "shadowib: the history of job %s stays in many files: %s\n", job.c_str(), s.text());
  std::vector<Status (Collector::*)()> parts{&Collector::sets, &Collector::staging};
  if (!one)
    parts = {&Collector::sets, &Collector::far,  &Collector::staging,
             &Collector::near, &Collector::jobs, &Collector::histories};
  for (const auto part : parts)
    if (Status s = (collector.*part)(); !s.ok()) return fail(arguments.common, s);
  if (collector.removed().empty())
    std::fprintf(stderr, "shadowib: nothing to remove in %s\n", arguments.common.directory.c_str());
  if (arguments.common.json) print_json({{"dry_run", arguments.dry_run}, {"removed", collector.removed()}});
  return 0;
}

}  // namespace

void add_gc(Command& program) {
  auto arguments = std::make_shared<GcArguments>();
  Command* command = program.add_subcommand("gc", "Remove old sets and what dead jobs left");
  command
      ->add_option("J", arguments->job, "Of this job only: its old sets, and what no failure of its clusters needs")
      ->not_empty("a job")
      ->completed_by(kJobNames);
  command
      ->add_option(
          "--keep", arguments->keep,
          "How many of each job's newest sets stay; may be left out if J is\nnamed: then all of the whole job "
          "stay")
      ->between(0, 1000000, "sets")
      ->type_name("N");
  command
      ->add_option("--keep-far", arguments->keep_far,
                   "Remove sets from far places, too, all but each job's N newest\nthere; by default none goes from "
                   "there")
      ->between(1, 1000000, "sets")
      ->type_name("N");
  command->add_flag("--dry-run", arguments->dry_run, "Remove nothing, only tell what would go");
  add_common(command, &arguments->common);
  command->footer(kGcExamples);
  command->callback([arguments] { return gc(*arguments); });
}

}  // namespace shadowib::cli
