#include "hooks/imager/descriptors/capture/launcher_process.h"

#include <unistd.h>

#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

bool is_of_launch(pid_t pid, const std::string& launch) {
  std::string environment;
  if (read_proc_file(("/proc/" + std::to_string(pid) + "/environ").c_str(), &environment) != 0) return false;
  return ('\0' + environment).find('\0' + ("PMIX_NAMESPACE=" + launch) + '\0') != std::string::npos;
}

}  // namespace

pid_t launcher_process(const std::string& launch) {
  pid_t pid = ::getppid();
  ProcessStat stat;
  while (pid > 1 && is_of_launch(pid, launch)) pid = read_process_stat(pid, &stat) ? stat.parent : 0;
  return pid > 1 ? pid : 0;
}

}  // namespace shadowib::descriptors
