#include "hooks/command/silent_member.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "shadowib/base/processes.h"

namespace shadowib {
namespace {

constexpr char kOpenFiles[] = "Max open files";

// The hard limit, up to which an agent raises the soft one by itself; 0 if there is none.
std::uint64_t open_files_limit(const std::string& process) {
  std::ifstream file(process + "/limits");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kOpenFiles)) continue;
    char* rest = nullptr;
    (void)std::strtoull(line.c_str() + sizeof(kOpenFiles) - 1, &rest, 10);
    return std::strtoull(rest, nullptr, 10);
  }
  return 0;
}

}  // namespace

Status judge_silence(const MemberStatus& member) {
  const std::string process = "/proc/" + std::to_string(member.pid);
  if (member.host != host_name() || member.start_time == 0 || process_start_time(member.pid) != member.start_time)
    return {};
  const std::uint64_t limit = open_files_limit(process);
  std::uint64_t taken = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(process + "/fd", error))
    if (std::strtoull(entry.path().filename().c_str(), nullptr, 10) < limit) ++taken;
  if (error || taken == 0 || taken < limit) return {};
  return Status::of(Code::kRefused, EMFILE,
                    "%.150s has no descriptor left (RLIMIT_NOFILE is %lu), so it cannot answer; raise its hard limit "
                    "(ulimit -Hn), or let the program close some",
                    describe(member).c_str(), static_cast<unsigned long>(limit));
}

}  // namespace shadowib
