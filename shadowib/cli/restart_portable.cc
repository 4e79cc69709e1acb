// A restart of a set of portable images.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>

#include "shadowib/cli/end_on_request.h"
#include "shadowib/cli/host_list.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/restart_hosts.h"
#include "shadowib/cli/restart_kinds.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace {

Status judge(const RestartArguments& arguments) {
  if (!arguments.members && arguments.workers < 0 && !arguments.far.given() && arguments.backend.empty() &&
      arguments.files == "keep")
    return {};
  return Status(
      Code::kUsage, 0,
      "a set of portable programs is restarted with --program, --runner, --hosts, --rsh, --lease, --dir and "
      "--json only");
}

// Where a BSP job goes on.
Status take_hosts(const RestartArguments& arguments, const PortableSet& set, PortableRestart* how) {
  if (arguments.hosts.empty()) return {};
  if (!set.is_bsp)
    return Status(Code::kUsage, 0, "--hosts is for sets of bsprun: processes of other portable jobs do not meet");
  std::vector<command_line::Host> hosts;
  SHADOWIB_TRY(parse_host_list(arguments.hosts, &hosts));
  how->hosts = command_line::hosts_text(hosts);
  how->shell = !arguments.shell.empty() ? arguments.shell : environment("RSH");
  how->lease_s = arguments.lease_s;
  if (!arguments.network.empty()) ::setenv("SHADOWIB_IB2TCP_NETWORK", arguments.network.c_str(), 1);
  return {};
}

}  // namespace

int restart_portable_set(const RestartArguments& arguments, SetManifest manifest) {
  const Common& common = arguments.common;
  if (Status s = judge(arguments); !s.ok()) return fail(common, s);
  const std::string exchange;
  RestartTold told(arguments, manifest, exchange, manifest.members.size());
  PortableSet set;
  PortableRestart how = arguments.portable;
  std::string lost_host;
  Status status = verify_with_progress(manifest.path, &manifest);
  if (status.ok()) status = read_portable_set(manifest, &set);
  if (status.ok()) status = take_hosts(arguments, set, &how);
  if (status.ok()) status = take_portable_job(common.directory, manifest.job);
  std::vector<RestartedProcess> processes;
  if (status.ok()) {
    told.verified();
    const auto started = [&] {
      const std::size_t count = set.members.size();
      told.line("restored " + std::to_string(count) + (count == 1 ? " process" : " processes"));
    };
    status = restart_portable(common, manifest, set, how, started, &processes, &lost_host);
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
  if (!lost_host.empty()) {
    note_event(common.directory, manifest.job,
               HistoryEvent("host_lost").add("on", lost_host).add("how", "its part of bsprun is gone"));
    return kLostHost;
  }
  const int exit_code = good ? 0 : kRestartedProcessFailed;
  told.saved_as(saved_by_records(common.directory, manifest.job));
  told.ended(processes, exit_code);
  return exit_code;
}

}  // namespace shadowib::cli
