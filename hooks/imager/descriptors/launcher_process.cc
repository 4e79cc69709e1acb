#include "hooks/imager/descriptors/launcher_process.h"

#include <unistd.h>

#include <string_view>

#include "hooks/imager/descriptors/proc.h"

namespace shadowib::descriptors {
namespace {

std::string read_of(pid_t pid, const char* file) {
  std::string text;
  return read_proc_file(("/proc/" + std::to_string(pid) + "/" + file).c_str(), &text) == 0 ? text : std::string();
}

// 0 if it is gone.
pid_t parent_of(pid_t pid) {
  const std::string stat = read_of(pid, "stat");
  const std::size_t end = stat.rfind(") ");  // then its state, a blank, its parent
  return end == std::string::npos || end + 4 > stat.size()
             ? 0
             : static_cast<pid_t>(parse_number(std::string_view(stat).substr(end + 4), 10));
}

bool is_of_launch(pid_t pid, const std::string& launch) {
  const std::string environment = '\0' + read_of(pid, "environ"), entry = '\0' + ("PMIX_NAMESPACE=" + launch) + '\0';
  return environment.find(entry) != std::string::npos;
}

}  // namespace

pid_t launcher_process(const std::string& launch) {
  pid_t pid = ::getppid();
  while (pid > 1 && is_of_launch(pid, launch)) pid = parent_of(pid);
  return pid > 1 ? pid : 0;
}

}  // namespace shadowib::descriptors
