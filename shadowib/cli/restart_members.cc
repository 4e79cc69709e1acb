// A restart on this machine: of a whole set, or of a share while other commands have the others.
#include "shadowib/cli/changed_files.h"
#include "shadowib/cli/doctor_set.h"
#include "shadowib/cli/far_flush.h"
#include "shadowib/cli/restart_kinds.h"
#include "shadowib/cli/restart_place.h"
#include "shadowib/cli/store_options.h"

namespace shadowib::cli {
namespace {

// Until the processes have ended.
Status restart_and_wait(const RestartArguments& arguments, SetManifest* manifest, const std::string& exchange,
                        bool shared, RestartTold* told, RestartOptions* options, RestartPlace* place,
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

}  // namespace

int restart_members(const RestartArguments& arguments, SetManifest manifest, const std::string& exchange,
                    std::set<std::uint32_t> members) {
  const Common& common = arguments.common;
  const bool shared = !members.empty() && members.size() < manifest.members.size();
  RestartTold told(arguments, manifest, exchange, members.empty() ? manifest.members.size() : members.size());
  RestartOptions options;
  options.members = std::move(members);
  RestartPlace place(common.directory, exchange);
  if (arguments.workers >= 0) place.ask_for_workers(static_cast<unsigned>(arguments.workers));
  std::vector<RestartedProcess> processes;
  const Status status =
      arguments.part.number != 0
          ? restart_part(arguments, &manifest, exchange, &options, &told, &processes)
          : restart_and_wait(arguments, &manifest, exchange, shared, &told, &options, &place, &processes);
  if (!status.ok()) return told.failed(status);
  const int exit_code = report_ends(common, manifest, options.members, processes, told.saved_as());
  told.ended(processes, exit_code);
  return exit_code;
}

}  // namespace shadowib::cli
