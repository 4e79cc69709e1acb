// restart_tool DIRECTORY NUMBER...: restarts DIRECTORY/NUMBER.img as one set and ends with the first member's exit
// status. IMAGER_TEST_RECOVERY: in the epoch of the set.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "hooks/imager/restart.h"

int main(int argc, char** argv) {
  shadowib::SetManifest manifest{};
  manifest.path = argv[1];
  for (int i = 2; i < argc; ++i) {
    shadowib::SetMember member{};
    member.index = static_cast<std::uint32_t>(i - 2);
    member.file = std::string(argv[i]) + ".img";
    manifest.members.push_back(member);
  }
  shadowib::RestartOptions options{};
  std::strcpy(options.job.job, "restarted");
  if (std::getenv("IMAGER_TEST_RECOVERY") != nullptr) options.job.recovery = 1;
  options.report = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  std::vector<shadowib::RestartedProcess> processes;
  const shadowib::Status status = shadowib::restart_set(manifest, options, &processes);
  if (!status.ok()) {
    std::fprintf(stderr, "restart: %s\n", status.text());
    return 100 + static_cast<int>(status.code());
  }
  for (const auto& p : processes)
    if (p.member == 0) return WIFEXITED(p.exit_status) ? WEXITSTATUS(p.exit_status) : 200 + WTERMSIG(p.exit_status);
  return 99;
}
