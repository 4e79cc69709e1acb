#include "hooks/imager/restore/process_tree.h"

#include <linux/futex.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <set>

#include "hooks/raw/proc.h"
#include "shadowib/base/processes.h"

namespace shadowib {
namespace {

constexpr std::uint32_t kGivenUp = 0x40000000;

enum class Call : std::int32_t { kClone = 0, kSession = 1, kGroup = 2, kTerminal = 3 };

// Shared by all processes of one placement.
struct Shared {
  std::atomic<std::uint32_t> groups_made;  // leaders that have made their group
  std::atomic<std::uint32_t> placed;       // processes that are where they belong
  std::atomic<std::uint32_t> error;        // errno of the first call that failed
  std::atomic<std::int32_t> error_pid, error_group;
  std::atomic<Call> error_call;
};

struct Node {
  pid_t pid, group;
  const PlacedProcess* process;  // nullptr: a stand-in, or one that is to end at once
  pid_t parent = 0;
  const EndedChild* ended = nullptr;
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

void wake_all(std::atomic<std::uint32_t>* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

void note_error(Shared* shared, Call call, int error, const Node& n) {
  std::int32_t none = 0;
  if (!shared->error_pid.compare_exchange_strong(none, n.pid)) return;  // the first tells
  shared->error_call = call;
  shared->error_group = n.group;
  shared->error = static_cast<std::uint32_t>(error);
  // Wakes those who wait for a group, or for a process, that will not come.
  shared->groups_made = kGivenUp;
  wake_all(&shared->groups_made);
  shared->placed = kGivenUp;
  wake_all(&shared->placed);
}

class Placement {
 public:
  Placement(const std::vector<PlacedProcess>& processes, Shared* shared, int hold_fd, int hold_write_fd)
      : shared_(shared), hold_fd_(hold_fd), hold_write_fd_(hold_write_fd) {
    std::set<pid_t> pids;
    for (const PlacedProcess& p : processes) {
      pids.insert(p.pid);
      auto& nodes = sessions_[p.session <= 1 ? 0 : p.session];
      nodes.push_back({p.pid, p.group <= 1 ? 0 : p.group, &p, p.parent});
      for (const EndedChild& e : p.ended) {
        pids.insert(e.pid);
        nodes.push_back({e.pid, e.group <= 1 ? 0 : e.group, nullptr, p.pid, &e});
      }
    }
    for (auto& [session, nodes] : sessions_) leave_groups_that_are_gone(session, pids, &nodes);
    for (auto& [session, nodes] : sessions_) {
      std::set<pid_t> groups;
      for (const Node& n : nodes) groups.insert(n.group);
      groups.insert(session);
      for (const pid_t group : groups)
        if (group != 0 && pids.count(group) == 0) nodes.push_back({group, group, nullptr});
      for (const Node& n : nodes)
        if (n.pid == n.group) ++leaders_;
      count_ += static_cast<std::uint32_t>(nodes.size());
    }
  }

  void run() {
    for (const auto& [session, nodes] : sessions_) {
      for (const Node& n : nodes) {
        if (n.parent != 0) continue;
        if (session == 0) make(n, false);
        if (n.pid == session) make_session(n, nodes);
      }
    }
  }

  // By pid 1. A process that is killed on its way cannot tell, so now and then it is looked for.
  void await_all() {
    for (std::uint32_t placed; (placed = shared_->placed.load()) < count_;) {
      const timespec patience{1, 0};
      ::syscall(SYS_futex, &shared_->placed, FUTEX_WAIT, placed, &patience, nullptr, 0);
      for (const auto& [session, nodes] : sessions_)
        for (const Node& n : nodes)  // in this order: when all are placed they may end
          if (was_killed(n) && shared_->placed.load() < count_) note_error(shared_, Call::kClone, ECHILD, n);
    }
  }

 private:
  // Of those that had ended, whose parents may wait for them by their groups. A stand-in for a group's leader would
  // be another child of that parent's where a child has made the session.
  static void leave_groups_that_are_gone(pid_t session, const std::set<pid_t>& pids, std::vector<Node>* nodes) {
    bool made_by_a_child = false;
    std::set<pid_t> led;
    for (const Node& n : *nodes) {
      made_by_a_child = made_by_a_child || (n.pid == session && n.parent != 0);
      if (n.pid == n.group) led.insert(n.pid);
    }
    for (Node& n : *nodes)
      if (n.ended != nullptr && led.count(n.group) == 0 && (made_by_a_child || pids.count(n.group) != 0)) n.group = 0;
  }

  static bool was_killed(const Node& n) {
    if (n.parent != 0) return is_zombie(n.pid);
    siginfo_t end{};
    return ::waitid(P_PID, static_cast<id_t>(n.pid), &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid == n.pid &&
           end.si_code != CLD_EXITED;
  }

  // Of another's child, which its parent does not wait for as long as it is not placed itself.
  static bool is_zombie(pid_t pid) {
    descriptors::ProcessStat stat;
    return descriptors::read_process_stat(pid, &stat) && stat.state == 'Z';
  }

  // The leader makes the session and, from within it, the others.
  void make_session(const Node& leader, const std::vector<Node>& nodes) {
    const long pid = clone_with_pid(leader.pid, false);
    if (pid < 0) return note_error(shared_, Call::kClone, errno, leader);
    if (pid > 0) return;
    if (leader.parent == 0) ::close(hold_write_fd_);
    if (::setsid() < 0) give_up(Call::kSession, leader);
    // Those that are made from here inherit it.
    terminal_ = controlled(nodes);
    if (terminal_ != nullptr && ::ioctl(terminal_->terminal_fd, TIOCSCTTY, 0) != 0) give_up(Call::kTerminal, leader);
    for (const Node& n : nodes)
      if (n.pid != leader.pid && n.parent == 0) make(n, true);
    make_children(leader);
    settle(leader, true);
  }

  void make(const Node& n, bool sibling) {
    const long pid = clone_with_pid(n.pid, sibling);
    if (pid < 0) return note_error(shared_, Call::kClone, errno, n);
    if (pid > 0) return;
    if (!sibling && n.parent == 0) ::close(hold_write_fd_);
    make_children(n);
    settle(n, false);
  }

  // By their parent, from which they inherit the session.
  void make_children(const Node& parent) {
    for (const auto& [session, nodes] : sessions_)
      for (const Node& n : nodes) {
        if (n.parent != parent.pid) continue;
        if (n.pid == session)
          make_session(n, nodes);
        else
          make(n, false);
      }
  }

  // One of them that has a controlling terminal: it is the session's.
  static const PlacedProcess* controlled(const std::vector<Node>& nodes) {
    for (const Node& n : nodes)
      if (n.process != nullptr && n.process->terminal_fd >= 0) return n.process;
    return nullptr;
  }

  void await_groups() const {
    for (std::uint32_t made; (made = shared_->groups_made.load()) < leaders_;)
      ::syscall(SYS_futex, &shared_->groups_made, FUTEX_WAIT, made, nullptr, nullptr, 0);
  }

  // Elsewhere than it was a process must not run: signals to its group would reach others.
  [[noreturn]] void give_up(Call call, const Node& n) {
    note_error(shared_, call, errno, n);
    ::_exit(126);
  }

  [[noreturn]] void settle(const Node& n, bool session_leader) {
    if (n.pid == n.group) {
      if (!session_leader && ::setpgid(0, 0) != 0) give_up(Call::kGroup, n);
      shared_->groups_made.fetch_add(1);
      wake_all(&shared_->groups_made);
    } else if (n.group != 0) {
      await_groups();
      if (::setpgid(0, n.group) != 0) give_up(Call::kGroup, n);
    }
    settle_terminal(n, session_leader);
    if (shared_->placed.fetch_add(1) + 1 >= count_) wake_all(&shared_->placed);
    // Before, who is seen to have ended was killed; and others may have to enter a group that is led here.
    if (n.ended != nullptr || n.process != nullptr) await_placed();
    if (n.ended != nullptr) end_as(n.ended->wait_status);
    if (n.process != nullptr) {
      await_ended(*n.process);
      n.process->run();
    }
    hold(session_leader && terminal_ != nullptr);
  }

  // With signals blocked, or who is in the background could not put a group into the foreground. A group that is gone
  // leaves the leader's there.
  void settle_terminal(const Node& n, bool session_leader) {
    const bool mine = n.process != nullptr && n.process->terminal_fd >= 0;
    errno = 0;
    if (mine && terminal_ == nullptr) give_up(Call::kTerminal, n);  // of a session from outside the namespace
    if (terminal_ == nullptr) return;
    if (session_leader) {
      await_groups();
      ::ioctl(terminal_->terminal_fd, TIOCSPGRP, &terminal_->foreground);
    } else if (!mine && n.process != nullptr) {
      ::ioctl(terminal_->terminal_fd, TIOCNOTTY);
    }
  }

  void await_placed() const {
    std::uint32_t placed;
    while ((placed = shared_->placed.load()) < count_)
      ::syscall(SYS_futex, &shared_->placed, FUTEX_WAIT, placed, nullptr, nullptr, 0);
    if (placed >= kGivenUp) ::_exit(126);
  }

  [[noreturn]] static void end_as(int wait_status) {
    if (WIFSIGNALED(wait_status)) {
      ::prctl(PR_SET_DUMPABLE, 0);  // no core, nor anybody who collects them
      sigset_t set;
      ::sigemptyset(&set);
      ::sigaddset(&set, WTERMSIG(wait_status));
      ::signal(WTERMSIG(wait_status), SIG_DFL);
      ::kill(::getpid(), WTERMSIG(wait_status));
      ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
    }
    ::_exit(WEXITSTATUS(wait_status));
  }

  // The program has been told of these ends already, or the image has the signal that tells.
  static void await_ended(const PlacedProcess& process) {
    if (process.ended.empty()) return;
    siginfo_t info{};
    for (const EndedChild& e : process.ended)
      while (::waitid(P_PID, static_cast<id_t>(e.pid), &info, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
      }
    sigset_t child;
    ::sigemptyset(&child);
    ::sigaddset(&child, SIGCHLD);
    const timespec now{0, 0};
    while (::sigtimedwait(&child, nullptr, &now) > 0) {
    }
  }

  [[noreturn]] void hold(bool forever) {
    // A stand-in has a copy of all that its maker has open, shared memory too, of which others are told who has it.
    close_all_but({hold_fd_});
    char byte;
    while (::read(hold_fd_, &byte, 1) < 0 && errno == EINTR) {
    }
    while (forever) ::pause();
    ::_exit(0);
  }

  Shared* shared_;
  int hold_fd_, hold_write_fd_;
  std::map<pid_t, std::vector<Node>> sessions_;
  const PlacedProcess* terminal_ = nullptr;  // in a process of a session: who tells of its terminal
  std::uint32_t leaders_ = 0, count_ = 0;
};

Status number_failure(const char* what, pid_t number, int error) {
  const char* remedy = error == EPERM
                           ? "clone3(set_tid) needs a kernel of 5.5 or later and is blocked by some containers' "
                             "seccomp profiles"
                       : error == EEXIST ? "the pid is in use"
                       : error == EINVAL ? "raise /proc/sys/kernel/pid_max above it"
                       : error == ENOSYS ? "clone3 needs Linux 5.5, or is blocked by a container's seccomp profile"
                                         : "see the limits on processes (ulimit -u)";
  return Status::of(error == EPERM || error == ENOSYS ? Code::kPermission : Code::kRefused, error, "%s %d: %s; %s",
                    what, number, std::strerror(error), remedy);
}

// 0 or an errno. The thread never leaves the loop, in which it needs no memory.
int make_sleeper(pid_t number) {
  clone_args how{};
  how.flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  how.set_tid = reinterpret_cast<std::uint64_t>(&number);
  how.set_tid_size = 1;
  long result;
  __asm__ volatile(
      "syscall\n\t"
      "testq %%rax, %%rax\n\t"
      "jnz 2f\n\t"
      "1:\n\t"
      "movl %[pause], %%eax\n\t"
      "syscall\n\t"
      "jmp 1b\n\t"
      "2:\n\t"
      : "=a"(result)
      : "a"(SYS_clone3), "D"(&how), "S"(sizeof(how)), [pause] "i"(SYS_pause)
      : "rcx", "r11", "memory");
  return result < 0 ? static_cast<int>(-result) : 0;
}

Status placement_failure(const Shared& shared) {
  const int error = static_cast<int>(shared.error.load());
  const pid_t pid = shared.error_pid.load();
  if (shared.error_call.load() == Call::kSession)
    return Status::of(Code::kRefused, error, "process %d cannot lead a session as it did: %s", pid,
                      std::strerror(error));
  if (shared.error_call.load() == Call::kGroup)
    return Status::of(Code::kRefused, error, "process %d cannot be in the process group %d as it was: %s", pid,
                      shared.error_group.load(), std::strerror(error));
  if (shared.error_call.load() == Call::kTerminal)
    return Status::of(Code::kRefused, error, "process %d cannot have its controlling terminal: %s", pid,
                      error == 0 ? "its session is from outside its pid namespace" : std::strerror(error));
  if (error == ECHILD) return Status::of(Code::kAborted, 0, "process %d was killed before it could be restored", pid);
  return number_failure("cannot make a process with the recorded pid", pid, error);
}

}  // namespace

Status place_processes(const std::vector<PlacedProcess>& processes, int hold_fd, int hold_write_fd) {
  std::set<pid_t> pids{0};
  for (const PlacedProcess& p : processes) pids.insert(p.pid);
  for (const PlacedProcess& p : processes)  // nobody would make it, and all would wait
    if (pids.count(p.parent) == 0)
      return Status::of(Code::kRefused, 0, "process %d cannot be restored without its parent, process %d", p.pid,
                        p.parent);
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
  placement.await_all();
  const Status status = shared->error_pid.load() == 0 ? Status() : placement_failure(*shared);
  ::munmap(memory, 4096);
  return status;
}

Status take_numbers(const std::vector<pid_t>& numbers) {
  for (const pid_t number : numbers)
    if (const int error = make_sleeper(number); error != 0)
      return number_failure("cannot make a thread with the recorded pid", number, error);
  return {};
}

}  // namespace shadowib
