// A restart of a set of portable images.
#include <sys/wait.h>

#include <cstdio>

#include "shadowib/cli/output.h"
#include "shadowib/cli/restart_kinds.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {

int restart_portable_set(const RestartArguments& arguments, SetManifest manifest) {
  const Common& common = arguments.common;
  if (arguments.members || !arguments.hosts.empty() || arguments.workers >= 0 || arguments.far.given() ||
      !arguments.backend.empty() || arguments.files != "keep")
    return fail(common, Status(Code::kUsage, 0,
                               "a set of portable programs is restarted with --program, --runner, --dir and --json "
                               "only"));
  const std::string exchange;
  RestartTold told(arguments, manifest, exchange, manifest.members.size());
  PortableSet set;
  Status status = verify_with_progress(manifest.path, &manifest);
  if (status.ok()) status = read_portable_set(manifest, &set);
  if (status.ok()) status = take_portable_job(common.directory, manifest.job);
  std::vector<RestartedProcess> processes;
  if (status.ok()) {
    told.verified();
    const auto started = [&] {
      const std::size_t count = set.members.size();
      told.line("restored " + std::to_string(count) + (count == 1 ? " process" : " processes"));
    };
    status = restart_portable(common, manifest, set, arguments.portable, started, &processes);
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

}  // namespace shadowib::cli
