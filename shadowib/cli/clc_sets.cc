#include "shadowib/cli/clc_sets.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "hooks/federation/collection.h"
#include "hooks/job/job_directory.h"
#include "hooks/job/protocol.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/jobs.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kAnswerMs = 2000;

Status open_view(const Common& common, const std::string& job, JobView* view) {
  std::string exchange = exchange_of(common, job);
  SHADOWIB_TRY(settle_exchange(job_paths(common.directory, job).password, &exchange));
  return open_job(common.directory, job, exchange, view);
}

struct ListedClc {
  SetManifest manifest;
  bool here = false;  // made in the job's present epoch
};

Status list_clcs(const std::string& directory, const std::string& job, const std::string& epoch,
                 std::vector<ListedClc>* clcs) {
  std::vector<ListedSet> all;
  SHADOWIB_TRY(list_sets(directory, &all));
  for (ListedSet& set : all) {
    if (!set.status.ok() || !set.manifest.cluster || set.manifest.job != job) continue;
    const bool here = !epoch.empty() && set.manifest.cluster->claim.starts_with(epoch + "/");
    clcs->push_back({std::move(set.manifest), here});
  }
  std::sort(clcs->begin(), clcs->end(),
            [](const ListedClc& a, const ListedClc& b) { return a.manifest.number > b.manifest.number; });
  return {};
}

// The decision over a CLC of the present epoch. One without a decision, and without a command that could make it, is
// void from now on, unless members or the command are quicker.
Status decision_of(JobView& view, const SetManifest& manifest, bool may_decide, std::optional<Decision>* decision) {
  const SetCluster& cluster = *manifest.cluster;
  const std::size_t slash = cluster.claim.rfind('/'), dot = cluster.claim.rfind('.');
  if (slash == std::string::npos || dot == std::string::npos || dot < slash)
    return Status::of(Code::kCorrupt, 0, "set %.200s names no claim", manifest.path.c_str());
  Decision found;
  Fields fields;
  bool there = false;
  SHADOWIB_TRY(view.fields(cluster.claim.substr(view.epoch.size() + 1), &fields, &there));
  if (there) {
    SHADOWIB_TRY(decode_decision(fields, &found));
    *decision = found;
    return {};
  }
  if (!may_decide || is_alive(view.alive(turn_lock(cluster.record.cluster)))) return {};
  Decision mine;
  mine.record.cluster = cluster.record.cluster;
  mine.record.sn = cluster.record.sn;
  mine.record.incarnation = cluster.record.incarnation;
  mine.record.claim = federation::ClcRecord::Claim::kVoid;
  mine.by = "gc";
  SHADOWIB_TRY(
      decide(*view.exchange, view.epoch, std::strtoull(cluster.claim.c_str() + dot + 1, nullptr, 10), mine, &found));
  *decision = found;
  return {};
}

bool counts(const std::optional<Decision>& decision, const SetManifest& manifest) {
  return decision && decision->record.claim == federation::ClcRecord::Claim::kCommitted &&
         decision->set_id == manifest.set_id;
}

}  // namespace

Status judge_restart_of_clc(const SetManifest& manifest) {
  if (!manifest.cluster) return {};
  return Status::of(
      Code::kRefused, 0,
      "%.100s is a checkpoint of cluster %.32s alone (CLC %u), and which of them is right depends on the other "
      "clusters: `shadowib restart --job %.64s --cluster %.32s` finds it",
      name_of(manifest).c_str(), manifest.cluster->name.c_str(), manifest.cluster->record.sn, manifest.job.c_str(),
      manifest.cluster->name.c_str());
}

std::string note_on_clc(const SetCluster& cluster, const std::string& job) {
  return "CLC " + std::to_string(cluster.record.sn) + " of cluster " + cluster.name +
         (cluster.record.forced ? ", forced" : "") + "; `shadowib restart --job " + job + " --cluster " +
         cluster.name + "` goes back to it";
}

Status look_at_federation(const Common& common, const std::string& job, int timeout_ms, FederationView* federation) {
  constexpr int kLooks = 5, kPauseUs = 200000;
  Status status;
  for (int look = 0; look < kLooks; ++look) {
    if (look > 0) ::usleep(kPauseUs);
    JobView view;
    std::vector<MemberStatus> members;
    SHADOWIB_TRY(open_view(common, job, &view));
    std::string exchange = exchange_of(common, job);
    SHADOWIB_TRY(settle_exchange(job_paths(common.directory, job).password, &exchange));
    SHADOWIB_TRY(query_status(common.directory, job, exchange, timeout_ms, &members, nullptr));
    SHADOWIB_TRY(read_federation(view, federation));
    if (!federation->exists()) return no_such_cluster(*federation, job, "");
    add_answers(members, federation);
    status = federation::check_histories(histories_of(*federation));
    if (status.ok()) return {};
  }
  return status;
}

std::string job_of_owner(const std::string& directory, const std::string& owner) {
  const std::size_t dot = owner.rfind('.');
  std::error_code error;
  if (dot == std::string::npos) return owner;
  const std::string job = owner.substr(0, dot);
  return fs::exists(job_paths(directory, job).clusters + "/" + owner.substr(dot + 1), error) ? job : owner;
}

RecoveryLock::RecoveryLock(const std::string& directory, const std::string& job)
    : lock_(hold_alive_lock(job_paths(directory, job).alive + "/recovery")),
      is_taken_(lock_ < 0 && errno == EAGAIN) {}

RecoveryLock::~RecoveryLock() {
  if (lock_ >= 0) release_alive_lock(lock_);
}

// Looking takes seconds, so it is done without the lock of recoveries. What was found holds for the incarnations that
// were seen: it is compared once the lock is taken.
Status clcs_to_remove(const Common& common, const std::string& job, std::optional<unsigned> keep, bool dry_run,
                      ClcsToRemove* found) {
  std::vector<ListedClc> clcs;
  std::string who;
  *found = {};
  std::vector<std::string>* const paths = &found->paths;
  SHADOWIB_TRY(list_clcs(common.directory, job, present_epoch(common.directory, job), &clcs));
  if (clcs.empty()) return {};
  if (keep == 0u && !job_in_use(common.directory, job, &who) && !is_supervised(common.directory, job)) {
    for (const ListedClc& clc : clcs) paths->push_back(clc.manifest.path);
    return {};
  }
  JobView view;
  FederationView federation, now;
  federation::ClcCollection collection;
  const bool any_here = std::any_of(clcs.begin(), clcs.end(), [](const ListedClc& c) { return c.here; });
  bool collected = false;
  if (any_here) {
    Status status = open_view(common, job, &view);
    if (status.ok()) status = look_at_federation(common, job, kAnswerMs, &federation);
    if (status.ok())
      status = federation::find_collection(histories_of(federation), incarnations_of(federation), &collection);
    collected = status.ok();
    if (!collected) found->why = status.text();
    found->lock = std::make_unique<RecoveryLock>(common.directory, job);
    if (found->lock->is_taken()) {
      found->why = "clusters of the job are being recovered";
      return {};
    }
    if (view.exchange != nullptr) SHADOWIB_TRY(read_federation(view, &now));
    if (collected && !(now.told == federation.told)) {  // a recovery tells of incarnations before anything ends
      found->why = "clusters of the job have gone back meanwhile; collect again";
      return {};
    }
  }
  std::map<std::string, unsigned> newer;  // by cluster: CLCs that count, of greater numbers
  for (const ListedClc& clc : clcs) {
    const SetCluster& cluster = *clc.manifest.cluster;
    if (!clc.here) {
      if (keep && newer[cluster.name]++ >= *keep) paths->push_back(clc.manifest.path);
      continue;
    }
    if (view.exchange == nullptr) continue;
    std::optional<Decision> decision;
    SHADOWIB_TRY(decision_of(view, clc.manifest, !dry_run, &decision));
    if (!decision) continue;
    if (!counts(decision, clc.manifest) || is_undone(now.plans, cluster.record)) {
      paths->push_back(clc.manifest.path);
      continue;
    }
    const bool is_newest = newer[cluster.name]++ < keep.value_or(0);
    if (collected && !is_newest && cluster.record.cluster < collection.oldest.clusters &&
        cluster.record.sn < collection.oldest[cluster.record.cluster])
      paths->push_back(clc.manifest.path);
  }
  return {};
}

}  // namespace shadowib::cli
