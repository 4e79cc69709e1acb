// A cluster's part of a recovery (`restart --job`).
#include <memory>

#include "shadowib/cli/changed_files.h"
#include "shadowib/cli/doctor_set.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/restart_kinds.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::cli {

Status restart_part(const RestartArguments& arguments, SetManifest* manifest, const std::string& exchange,
                    RestartTold* told, std::vector<RestartedProcess>* processes) {
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

}  // namespace shadowib::cli
