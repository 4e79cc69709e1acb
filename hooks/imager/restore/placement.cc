#include "hooks/imager/restore/placement.h"

#include <linux/futex.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <set>

namespace shadowib {
namespace {

// Shared by all processes of one placement.
struct Shared {
  std::atomic<std::uint32_t> groups_made;  // leaders that have made their group
  std::atomic<std::uint32_t> error;        // errno of the first clone3 that failed
  std::atomic<std::int32_t> error_pid;
};

struct Node {
  pid_t pid, group;
  const PlacedProcess* process;  // nullptr: a stand-in
};

long clone_with_pid(pid_t pid, bool sibling) {
  clone_args how{};
  // A sibling is the child of the cloning process's parent.
  how.flags = sibling ? CLONE_PARENT : 0;
  how.exit_signal = sibling ? 0 : SIGCHLD;
  how.set_tid = reinterpret_cast<std::uint64_t>(&pid);
  how.set_tid_size = 1;
  return ::syscall(SYS_clone3, &how, sizeof(how));
}

void note_error(Shared* shared, int error, pid_t pid) {
  std::uint32_t none = 0;
  if (shared->error.compare_exchange_strong(none, static_cast<std::uint32_t>(error))) shared->error_pid = pid;
  // Wakes those who wait for a group that will not come.
  shared->groups_made = 0x40000000;
  ::syscall(SYS_futex, &shared->groups_made, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

class Placement {
 public:
  Placement(const std::vector<PlacedProcess>& processes, Shared* shared, int hold_fd, int hold_write_fd)
      : shared_(shared), hold_fd_(hold_fd), hold_write_fd_(hold_write_fd) {
    std::set<pid_t> pids;
    for (const PlacedProcess& p : processes) pids.insert(p.pid);
    for (const PlacedProcess& p : processes) {
      const pid_t session = p.session <= 1 ? 0 : p.session;
      sessions_[session].push_back({p.pid, p.group <= 1 ? 0 : p.group, &p});
    }
    for (auto& [session, nodes] : sessions_) {
      std::set<pid_t> groups;
      for (const Node& n : nodes) groups.insert(n.group);
      groups.insert(session);
      for (const pid_t group : groups)
        if (group != 0 && pids.count(group) == 0) nodes.push_back({group, group, nullptr});
      for (const Node& n : nodes)
        if (n.pid == n.group) ++leaders_;
    }
  }

  void run() {
    for (const auto& [session, nodes] : sessions_) {
      if (session == 0) {
        for (const Node& n : nodes) make(n, 0, false);
        continue;
      }
      for (const Node& n : nodes)
        if (n.pid == session) make_session(n, nodes);
    }
  }

 private:
  // The leader makes the session and, from within it, the others.
  void make_session(const Node& leader, const std::vector<Node>& nodes) {
    const long pid = clone_with_pid(leader.pid, false);
    if (pid < 0) return note_error(shared_, errno, leader.pid);
    if (pid > 0) return;
    ::close(hold_write_fd_);
    if (::setsid() < 0) note_error(shared_, errno, leader.pid);
    for (const Node& n : nodes)
      if (n.pid != leader.pid) make(n, leader.pid, true);
    settle(leader, true);
  }

  void make(const Node& n, pid_t, bool sibling) {
    const long pid = clone_with_pid(n.pid, sibling);
    if (pid < 0) return note_error(shared_, errno, n.pid);
    if (pid > 0) return;
    if (!sibling) ::close(hold_write_fd_);
    settle(n, false);
  }

  [[noreturn]] void settle(const Node& n, bool session_leader) {
    if (n.pid == n.group) {
      if (!session_leader && ::setpgid(0, 0) != 0) note_error(shared_, errno, n.pid);
      shared_->groups_made.fetch_add(1);
      ::syscall(SYS_futex, &shared_->groups_made, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
    } else if (n.group != 0) {
      for (;;) {
        const std::uint32_t made = shared_->groups_made.load();
        if (made >= leaders_) break;
        ::syscall(SYS_futex, &shared_->groups_made, FUTEX_WAIT, made, nullptr, nullptr, 0);
      }
      if (::setpgid(0, n.group) != 0) note_error(shared_, errno, n.pid);
    }
    if (n.process != nullptr) n.process->run();
    // A stand-in has a copy of all that its maker has open, shared memory too, of which others are told who has it.
    if (hold_fd_ > 0) ::syscall(SYS_close_range, 0, hold_fd_ - 1, 0);
    ::syscall(SYS_close_range, hold_fd_ + 1, ~0u, 0);
    char byte;
    while (::read(hold_fd_, &byte, 1) < 0 && errno == EINTR) {
    }
    ::_exit(n.process != nullptr ? 126 : 0);
  }

  Shared* shared_;
  int hold_fd_, hold_write_fd_;
  std::map<pid_t, std::vector<Node>> sessions_;
  std::uint32_t leaders_ = 0;
};

}  // namespace

Status place_processes(const std::vector<PlacedProcess>& processes, int hold_fd, int hold_write_fd) {
  for (const PlacedProcess& p : processes)
    if (p.pid == 1)
      return Status(Code::kRefused, 0,
                    "a member had pid 1 (it was the first process of a container), and the restart's own "
                    "first process has it; start the job as a child of an init (docker: --init)");
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status(Code::kIo, errno, "no memory for placing processes");
  auto* shared = new (memory) Shared{};
  Placement placement(processes, shared, hold_fd, hold_write_fd);
  placement.run();
  const int error = static_cast<int>(shared->error.load());
  if (error == 0) return {};
  const char* remedy = error == EPERM
                           ? "clone3(set_tid) needs a kernel of 5.5 or later and is blocked by some containers' "
                             "seccomp profiles"
                       : error == EEXIST ? "the pid is in use"
                       : error == EINVAL ? "raise /proc/sys/kernel/pid_max above it"
                       : error == ENOSYS ? "clone3 needs Linux 5.5, or is blocked by a container's seccomp profile"
                                         : "see its limits on processes";
  return Status::of(error == EPERM || error == ENOSYS ? Code::kPermission : Code::kRefused, error,
                    "cannot make a process with the recorded pid %d: %s; %s", shared->error_pid.load(),
                    std::strerror(error), remedy);
}

}  // namespace shadowib
