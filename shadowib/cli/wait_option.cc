#include "shadowib/cli/wait_option.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/store/store.h"
#include "shadowib/cli/far_flush.h"
#include "shadowib/cli/far_sets.h"
#include "shadowib/cli/far_turns.h"
#include "shadowib/cli/output.h"

namespace shadowib::cli {
namespace {

// As the store will choose it, unless another checkpoint comes before.
std::uint32_t next_number(const std::string& directory, const std::string& job) {
  std::uint32_t next = 1;
  std::vector<StoredSet> sets;
  if (!open_directory_store(directory)->list(&sets).ok()) return next;
  for (const StoredSet& set : sets)
    if (set.job == job) next = std::max(next, set.number + 1);
  return next;
}

Status flush_in_turn(const std::string& directory, const std::string& set_path, const FarSettings& settings) {
  FlushTurn turn;
  FlushReport report;
  SetManifest manifest;
  SHADOWIB_TRY(read_manifest(set_path, &manifest));
  {
    Progress progress;
    if (FlushTurn::taken(directory, manifest.job)) progress.step("waiting for another flush of job " + manifest.job);
    SHADOWIB_TRY(turn.take(directory, manifest.job, true));
  }
  const std::vector<FarSet> there = sets_in_far(directory, manifest.job);
  const std::string far = settings.spec.text();
  const auto is_it = [&](const FarSet& line) { return line.set_id == manifest.set_id && line.far == far; };
  return std::any_of(there.begin(), there.end(), is_it) ? Status()
                                                        : flush_set(directory, set_path, settings, &report);
}

}  // namespace

void add_wait_option(Command* command, std::string* wait) {
  command
      ->add_option("--wait", *wait,
                   "near: return at the commit. far: return when the set is in FAR, and\nfail if it does not get "
                   "there. Default near; with --kill as far, but\na failed flush is told and is no failure")
      ->one_of({kWaitNear, kWaitFar})
      ->type_name("PLACE");
}

Status judge_wait_far(const std::string& directory, const std::string& job, const FarSettings& settings) {
  if (!settings.known)
    return Status::of(Code::kUsage, EINVAL, "--wait far: job %.64s has no far place; name one with --far",
                      job.c_str());
  if (settings.every == 0)
    return Status::of(Code::kUsage, EINVAL,
                      "--wait far: sets of job %.64s are not flushed (--flush none); give --flush all, or leave out "
                      "--wait",
                      job.c_str());
  if (const std::uint32_t number = next_number(directory, job); !settings.is_due(number))
    return Status::of(
        Code::kUsage, EINVAL,
        "--wait far: the next set, %.70s, is not one that is flushed (--flush %.20s); give --flush all, "
        "or leave out --wait",
        set_name(job, number).c_str(), flush_text(settings.every).c_str());
  return {};
}

Status flush_and_wait(const std::string& directory, const std::string& set_path, const FarSettings& settings) {
  const Status status = flush_in_turn(directory, set_path, settings);
  if (status.ok()) return {};
  const std::string set = std::filesystem::path(set_path).filename();
  return Status::of(status.code(), status.error(), "set %.70s is committed and stays, but is not in %.60s: %.200s",
                    set.c_str(), settings.spec.text().c_str(), status.text());
}

}  // namespace shadowib::cli
