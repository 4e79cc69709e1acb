#include "shadowib/cli/far_look.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>

#include "hooks/imager/set/manifest.h"
#include "hooks/job/job_directory.h"
#include "shadowib/cli/far_turns.h"

namespace shadowib::cli {
namespace {

// The manifest of a set that is being removed: it names what has to go.
constexpr char kRemovingFile[] = "removing.json";

Status remove_far_set(FarPlace& place, const std::string& job, const FarSet& set) {
  const std::string prefix = far_prefix(job, set.set_id);
  const FlushOptions options;
  FlushReport report;
  std::string json, sum;
  SetManifest manifest;
  Status status = get_text(place, prefix + kManifestFile, &json);
  const bool whole = status.ok();
  if (status.code() == Code::kNotFound) status = get_text(place, prefix + kRemovingFile, &json);
  if (status.code() == Code::kNotFound) return {};  // nothing is left
  SHADOWIB_TRY(status);
  SHADOWIB_TRY(decode_manifest(json, manifest_sum(json), "far:" + prefix, &manifest));
  if (whole) {
    SHADOWIB_TRY(flush_pieces(place, prefix, {far_text(kRemovingFile, json)}, options, &report));
    SHADOWIB_TRY(place.remove(prefix + kManifestFile));
  }
  for (const SetMember& member : manifest.members) SHADOWIB_TRY(place.remove(prefix + member.file));
  SHADOWIB_TRY(place.remove(prefix + kManifestSumFile));
  return place.remove(prefix + kRemovingFile);
}

// All but the newest `keep` that a restart could fetch. A set whose flush was cut short replaces none.
Status find_old(FarPlace& place, const std::string& job, std::vector<FarSet> sets, unsigned keep,
                std::vector<FarSet>* old) {
  std::stable_sort(sets.begin(), sets.end(), is_older_far_set);
  for (; keep > 0 && !sets.empty(); sets.pop_back()) {
    SetManifest manifest;
    const Status status = far_manifest(place, job, sets.back().set_id, &manifest);
    if (status.ok())
      --keep;
    else if (status.code() != Code::kNotFound && status.code() != Code::kCorrupt)
      return status;
  }
  *old = std::move(sets);
  return {};
}

Status remove_from(const FarSettings& settings, const std::string& directory, const std::string& job, unsigned keep,
                   bool dry_run, const std::function<void(const std::string& what)>& tell) {
  FlushTurn turn;
  std::vector<FarSet> sets, old;
  const std::string far = settings.spec.text();
  const std::unique_ptr<FarPlace> place = settings.open();
  SHADOWIB_TRY(turn.take(directory, job, false));
  SHADOWIB_TRY(place->check());
  SHADOWIB_TRY(read_far_list(*place, directory, job, far, &sets));
  SHADOWIB_TRY(find_old(*place, job, sets, keep, &old));
  for (const FarSet& set : old) {
    tell(far + "/" + job + "/" + set.set_id + " (" + set_name(job, set.number) + ")");
    if (dry_run) continue;
    SHADOWIB_TRY(remove_far_set(*place, job, set));
    const auto is_it = [&set](const FarSet& other) { return other.set_id == set.set_id; };
    std::erase_if(sets, is_it);
    FlushReport report;
    SHADOWIB_TRY(flush_pieces(*place, job + "/", {far_text(kFarList, encode_far_list(sets))}, {}, &report));
    std::vector<FarSet> known = sets_in_far(directory, job);
    std::erase_if(known, [&](const FarSet& other) { return is_it(other) && other.far == far; });
    SHADOWIB_TRY(record_far_sets(directory, job, known));
  }
  return {};
}

}  // namespace

Status check_far_set(const std::string& directory, const std::string& job, const FarSet& set, bool deep) {
  FarSettings settings;
  SetManifest manifest;
  SHADOWIB_TRY(settings_of(set, directory, job, &settings));
  const std::unique_ptr<FarPlace> place = settings.open();
  SHADOWIB_TRY(place->check());
  SHADOWIB_TRY(far_manifest(*place, job, set.set_id, &manifest));
  for (const SetMember& member : manifest.members) {
    const std::string name = far_prefix(job, set.set_id) + member.file;
    const Piece piece{member.file, member.bytes, member.xxh3};
    FarObject object;
    SHADOWIB_TRY(place->stat(name, &object));
    if (!object.found || object.bytes != member.bytes || (!object.xxh3.empty() && object.xxh3 != member.xxh3))
      return Status::of(Code::kCorrupt, 0, "far: %.200s is %s; flush the set again if it is here", name.c_str(),
                        object.found ? "another piece" : "not there");
    if (deep) SHADOWIB_TRY(get_piece(*place, name, piece, [](std::string_view) { return Status(); }));
  }
  return {};
}

Status remove_far_sets(const std::string& directory, const std::string& job, unsigned keep, bool dry_run,
                       const std::function<void(const std::string& what)>& tell) {
  std::set<std::string> places;
  for (const FarSet& set : sets_in_far(directory, job)) {
    FarSettings settings;
    if (!places.insert(set.far).second) continue;
    SHADOWIB_TRY(settings_of(set, directory, job, &settings));
    const Status status = remove_from(settings, directory, job, keep, dry_run, tell);
    if (!status.ok()) std::fprintf(stderr, "shadowib: sets in %s stay: %s\n", set.far.c_str(), status.text());
    if (!status.ok() && status.code() != Code::kBusy) return status;
  }
  return {};
}

}  // namespace shadowib::cli
