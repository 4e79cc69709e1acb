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

// The kernel marks a file that was replaced since, as by an upgrade.
std::string program_of(const std::string& pid) {
  constexpr std::string_view kReplaced = " (deleted)";
  std::error_code error;
  std::string program = fs::read_symlink("/proc/" + pid + "/exe", error);
  if (program.ends_with(kReplaced) && !fs::exists(program, error)) program.resize(program.size() - kReplaced.size());
  return program;
}

bool is_our_command(pid_t pid) { return program_of(std::to_string(pid)) == own_program(); }

using Children = std::multimap<pid_t, pid_t>;  // by their parent

Children all_children() {
  std::vector<std::string> names;
  Children children;
  (void)system_files().list("/proc", &names);
  for (const std::string& name : names) {
    const pid_t pid = std::atoi(name.c_str());
    if (pid <= 0) continue;
    if (const ProcessStat stat = process_stat(pid); stat.exists()) children.emplace(stat.parent, pid);
  }
  return children;
}

// The processes below `roots`, without those that `except` names and all below them.
template <typename Except>
std::vector<pid_t> below(const Children& children, std::vector<pid_t> roots, Except except) {
  const std::size_t given = roots.size();
  for (std::size_t i = 0; i < roots.size(); ++i)
    for (auto [at, end] = children.equal_range(roots[i]); at != end; ++at)
      if (!except(at->second)) roots.push_back(at->second);
  roots.erase(roots.begin(), roots.begin() + static_cast<std::ptrdiff_t>(given));
  return roots;
}

// With their start times, for a pid may come again. Orphans of one become our children.
std::map<pid_t, std::uint64_t> spared, claimed;

bool is_among(const std::map<pid_t, std::uint64_t>& processes, pid_t pid) {
  const auto at = processes.find(pid);
  return at != processes.end() && process_start_time(pid) == at->second;
}

void spare_below(const Children& children, std::vector<pid_t> roots) {
  for (const pid_t pid : below(children, std::move(roots), [](pid_t pid) { return is_among(claimed, pid); }))
    spared[pid] = process_start_time(pid);
}

// Without our commands and those that are spared, and what is below them.
std::vector<pid_t> descendants(pid_t root) {
  const Children children = all_children();
  std::vector<pid_t> roots;
  for (const auto& [pid, start_time] : spared)
    if (process_start_time(pid) == start_time) roots.push_back(pid);
  spare_below(children, std::move(roots));
  return below(children, {root}, [](pid_t pid) { return is_among(spared, pid) || is_our_command(pid); });
}

}  // namespace

void spare(pid_t pid) { spared[pid] = process_start_time(pid); }

void claim(pid_t pid) {
  if (is_among(claimed, pid)) return;
  claimed[pid] = process_start_time(pid);
  spared.erase(pid);
  for (const pid_t other : below(all_children(), {pid}, [](pid_t) { return false; })) spared.erase(other);
}

void spare_present_children() { spare_below(all_children(), {::getpid()}); }

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

Status start_process(const std::vector<std::string>& words, int output, pid_t* pid, TakenOutput taken,
                     ProcessGroup group) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  if (::access(arguments[0], X_OK) != 0)
    return Status::of(Code::kIo, errno, "cannot execute %.300s: %s; was shadowib moved or removed since the start?",
                      arguments[0], std::strerror(errno));
  std::fflush(nullptr);
  *pid = ::fork();
  if (*pid > 0) return {};
  if (*pid < 0) return Status::of(Code::kIo, errno, "cannot fork: %s", std::strerror(errno));
  give_back_inherited_signals();
  if (group == ProcessGroup::kOwn) ::setpgid(0, 0);
  if (output >= 0) ::dup2(output, 1);
  if (output >= 0 && taken == TakenOutput::kAll) ::dup2(output, 2);
  ::execv(arguments[0], arguments.data());
  std::fprintf(stderr, "shadowib: cannot execute %s: %s\n", arguments[0], std::strerror(errno));
  ::_exit(127);
}

const std::string& own_program() {
  static const std::string program = program_of("self");
  return program;
}

}  // namespace shadowib::cli
