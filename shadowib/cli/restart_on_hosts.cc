// A restart whose members are spread over hosts (--hosts).
#include <filesystem>

#include "shadowib/cli/host_list.h"
#include "shadowib/cli/host_shares.h"
#include "shadowib/cli/restart_hosts.h"
#include "shadowib/cli/restart_kinds.h"

namespace shadowib::cli {

int restart_on_hosts(const RestartArguments& arguments, const SetManifest& manifest) {
  const Common& common = arguments.common;
  std::vector<command_line::Host> hosts;
  if (const Status status = parse_host_list(arguments.hosts, &hosts); !status.ok()) return fail(common, status);
  if (arguments.members || arguments.workers >= 0 || arguments.far.given() || common.json)
    return fail(common, Status(Code::kUsage, 0,
                               "--hosts does not go with --members, --workers, --json and options of far places"));
  for (const command_line::Host& host : hosts)
    if (!host.architecture.empty())
      return fail(common, Status::of(Code::kUsage, 0,
                                     "--hosts %.100s:%.20s: only sets of bsprun --portable restart on another "
                                     "architecture",
                                     host.name.c_str(), host.architecture.c_str()));
  Companies companies;
  if (Status s = find_companies(manifest, &companies); !s.ok()) return fail(common, s);
  std::error_code error;
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe", error).string(),
                                 "restart",
                                 std::filesystem::absolute(manifest.path, error).lexically_normal().string(),
                                 "--held",
                                 "--dir",
                                 common.directory,
                                 "--files",
                                 arguments.files,
                                 "--wait",
                                 std::to_string(arguments.wait_s),
                                 "--timeout",
                                 std::to_string(arguments.timeout_s)};
  if (arguments.part.number != 0) words.insert(words.end(), {"--in-recovery", arguments.in_recovery});
  if (arguments.lease_s > 0) words.insert(words.end(), {"--lease", std::to_string(arguments.lease_s)});
  if (!common.exchange.empty()) words.insert(words.end(), {"--exchange", common.exchange});
  if (!arguments.backend.empty()) words.insert(words.end(), {"--backend", arguments.backend});
  if (!arguments.network.empty()) words.insert(words.end(), {"--network", arguments.network});
  const std::string shell = !arguments.shell.empty() ? arguments.shell : environment("RSH");
  return run_shares(common, manifest.job, share_out(companies, hosts), shell.empty() ? "ssh" : shell, words,
                    arguments.lease_s);
}

}  // namespace shadowib::cli
