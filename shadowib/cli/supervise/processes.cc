#include "shadowib/cli/supervise/processes.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "hooks/store/files.h"
#include "shadowib/base/processes.h"
#include "shadowib/cli/inherited_signals.h"

namespace shadowib::cli {
namespace fs = std::filesystem;
namespace {

bool is_our_command(pid_t pid) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
  return !error && program == fs::path(own_program());
}

// Without our commands, and what is below them.
std::vector<pid_t> descendants(pid_t root) {
  std::vector<std::string> names;
  std::multimap<pid_t, pid_t> children;
  (void)system_files().list("/proc", &names);
  for (const std::string& name : names) {
    const pid_t pid = std::atoi(name.c_str());
    if (pid <= 0) continue;
    if (const ProcessStat stat = process_stat(pid); stat.exists()) children.emplace(stat.parent, pid);
  }
  std::vector<pid_t> found{root};
  for (std::size_t i = 0; i < found.size(); ++i)
    for (auto [at, end] = children.equal_range(found[i]); at != end; ++at)
      if (!is_our_command(at->second)) found.push_back(at->second);
  found.erase(found.begin());
  return found;
}

}  // namespace

std::vector<pid_t> kill_descendants(pid_t root) {
  std::vector<pid_t> found = descendants(root);
  for (const pid_t pid : found) ::kill(pid, SIGKILL);
  return found;
}

std::string describe_state(char state) {
  if (state == 'D') return "; it is in state D: the kernel lets no signal end it before its system call is over";
  if (state == 'T' || state == 't') return "; it is stopped";
  return state == 0 ? "" : "; it runs";
}

std::string describe_process(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return "process " + std::to_string(pid) + " (" + name + ")" + describe_state(process_stat(pid).state);
}

Status start_process(const std::vector<std::string>& words, int output, pid_t* pid) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  *pid = ::fork();
  if (*pid > 0) return {};
  if (*pid < 0) return Status::of(Code::kIo, errno, "cannot fork: %s", std::strerror(errno));
  give_back_inherited_signals();
  if (output >= 0) ::dup2(output, 1), ::dup2(output, 2);
  ::execv(arguments[0], arguments.data());
  std::fprintf(stderr, "shadowib: cannot execute %s: %s\n", arguments[0], std::strerror(errno));
  ::_exit(127);
}

std::string own_program() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);
}

}  // namespace shadowib::cli
