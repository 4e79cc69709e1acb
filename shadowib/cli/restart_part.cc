// A cluster's part of a recovery (`restart --job`), or that of it which one host has.
#include <memory>

#include "shadowib/cli/changed_files.h"
#include "shadowib/cli/doctor_set.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/restart_kinds.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::cli {

Status restart_part(const RestartArguments& arguments, SetManifest* manifest, const std::string& exchange,
                    RestartOptions* options, RestartTold* told, std::vector<RestartedProcess>* processes) {
  const std::string epoch = present_epoch(arguments.common.directory, manifest->job);
  SHADOWIB_TRY(verify_here(arguments, options->members, manifest));
  told->verified();
  told->began(epoch);
  SHADOWIB_TRY(check_set_here(*manifest, options->members, wanted_backend(arguments), verbs_library()));
  options->report = [told](const std::string& line) { told->line(line); };
  const bool rolls_back = arguments.files == "roll-back";
  SHADOWIB_TRY(choose_files(*manifest, options->members, rolls_back, options->report, &options->cut));
  options->others_cut = rolls_back && !options->members.empty();
  SHADOWIB_TRY(fill_job(arguments, *manifest, exchange, epoch, &options->job));
  options->begin = [&]() -> Status {
    std::unique_ptr<Exchange> met;
    std::set<std::uint32_t> members = options->members;
    for (const SetMember& member : manifest->members)
      if (options->members.empty()) members.insert(member.index);
    SHADOWIB_TRY(Exchange::open(exchange, false, &met));
    return meet_other_parts(*met, epoch, arguments.part, members);
  };
  SHADOWIB_TRY(restart_set(*manifest, *options, processes));
  return failure_of(exchange, epoch, arguments.part.number, *processes);
}

}  // namespace shadowib::cli
