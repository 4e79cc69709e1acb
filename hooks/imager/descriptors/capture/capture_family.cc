#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "hooks/imager/descriptors/capture/capture.h"
#include "hooks/imager/descriptors/capture/refuse.h"
#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

// How it has ended is told and left for the program to take.
Status look_at_the_end(const Table& table, Child* child) {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(child->pid), &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0 ||
      info.si_pid != child->pid)
    return refuse_child(
        table, *child,
        "its main thread has ended, but not all of it, or somebody traces it; wait for its end, or detach "
        "the debugger",
        EAGAIN);
  child->ended = 1;
  child->wait_status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
  return {};
}

Status capture_child(int pid, Table* table) {
  ProcessStat stat;
  Child child;
  child.pid = pid;
  child.name = "?";
  if (!read_process_stat(pid, &stat)) {
    // Where SIGCHLD is ignored it may have gone by itself, since it was listed.
    siginfo_t info{};
    const bool gone =
        ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0 && errno == ECHILD;
    return gone ? Status()
                : refuse_child(*table, child,
                               "/proc does not show it (another user's, and hidepid?); mount /proc without hidepid",
                               EAGAIN);
  }
  child.group = stat.group;
  child.session = stat.session;
  child.name = stat.name;
  if (stat.exit_signal != SIGCHLD)
    return refuse_child(*table, child, "its end is told by another signal than SIGCHLD (clone); wait for it to end",
                        EAGAIN);
  if (stat.state == 'Z' || stat.state == 'X') SHADOWIB_TRY(look_at_the_end(*table, &child));
  table->children.push_back(std::move(child));
  return {};
}

}  // namespace

Status capture_family(Table* table) {
  table->group = ::getpgid(0);
  table->session = ::getsid(0);
  std::vector<int> threads;
  if (const int error = list_numbers("/proc/self/task", &threads); error != 0)
    return Status(Code::kInternal, error, "cannot read /proc/self/task");
  bool told = false;
  for (const int thread : threads) {
    std::string text;
    const int error = read_proc_file(("/proc/self/task/" + std::to_string(thread) + "/children").c_str(), &text);
    if (error == ENOENT || error == ESRCH) continue;  // the thread has gone, or there is no such file
    if (error != 0) return Status::of(Code::kInternal, error, "cannot see the children of thread %d", thread);
    told = true;
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t end = std::min(rest.find_first_of(" \n"), rest.size());
      if (end > 0) SHADOWIB_TRY(capture_child(static_cast<int>(parse_number(rest.substr(0, end), 10)), table));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  if (!told)
    return Status(
        Code::kRefused, ENOENT,
        "this kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN), so child processes cannot be "
        "seen; use a kernel that has");
  std::sort(table->children.begin(), table->children.end(),
            [](const Child& one, const Child& other) { return one.pid < other.pid; });
  return {};
}

}  // namespace shadowib::descriptors
