// The command's side of a restart: reads the images, starts the supervisor, passes signals down and results up.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hooks/imager/restart.h"
#include "hooks/imager/restore/first_process.h"
#include "hooks/imager/restore/members.h"
#include "hooks/imager/restore/namespaces.h"
#include "hooks/imager/restore/page_stream.h"
#include "hooks/imager/restore/process_groups.h"
#include "hooks/imager/restore/processor_check.h"
#include "hooks/imager/restore/roll_back.h"
#include "hooks/imager/restore/shared_memory.h"
#include "hooks/threads/sanitizer_thread.h"
#include "shadowib/base/forwarded_signals.h"
#include "shadowib/base/ignored_signal.h"

namespace shadowib {
namespace {

constexpr int kWatchMs = 500, kRollBackMs = 20;

// In the first child: makes the namespaces, then their first process, and waits for it.
[[noreturn]] void run_outer(const OpenedSet& set, const RestartPart& part, const RestartOptions& options,
                            SharedMemoryPlan* memory, int command_fd) {
  const auto fail = [command_fd](const Status& status) {
    const SupervisorMessage message{SupervisorMessage::kStatus, 0, 0, status};
    [[maybe_unused]] const ssize_t n = ::send(command_fd, &message, sizeof(message), MSG_NOSIGNAL);
    ::_exit(1);
  };
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  await_single_thread();
  // Where the command's caller ignores SIGCHLD, a number could be another process's by the time it is ended.
  ::signal(SIGCHLD, SIG_DFL);
  PageStreams streams;
  if (const Status status = streams.start(part); !status.ok()) fail(status);
  if (const Status status = enter_namespaces(clock_floor(part), has_system_v(set, part)); !status.ok()) fail(status);
  const pid_t inner = ::fork();
  if (inner == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(supervise(set, part, options, memory, &streams, command_fd));
  }
  if (inner < 0)
    fail(Status(Code::kPermission, errno,
                "cannot start the first process of the pid namespace; see the limits on processes (ulimit -u) and "
                "kernel.pid_max"));
  ::close(command_fd);
  memory->close();  // or it would be one more process that has it
  streams.close_all();
  int wait_status = 0;
  for (pid_t ended; (ended = ::waitpid(-1, &wait_status, 0)) != inner;) {
    if (ended < 0 && errno != EINTR) break;
    if (ended > 0) streams.forget(ended);
  }
  streams.end();
  ::_exit(WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 1);
}

class Command {
 public:
  Command(const OpenedSet& set, RestartOptions options, std::vector<RestartedProcess>* processes)
      : set_(set), options_(std::move(options)), processes_(*processes), roll_back_(set, options_) {}

  Status run() {
    std::vector<RestartPart> parts;
    SHADOWIB_TRY(split(set_, &parts));
    // They meet in the job's new epoch; one that clusters come back in is there already.
    if (parts.size() > 1 && options_.job.recovery == 0) SHADOWIB_TRY(begin());
    sigset_t forwarded = forwarded_signals(), before;
    for (const int signal : kForwardedSignals)  // a blocked signal would be read here though it is ignored
      if (is_ignored(signal)) ::sigdelset(&forwarded, signal);
    ::pthread_sigmask(SIG_BLOCK, &forwarded, &before);
    end_sanitizer_thread();
    Status status = memory_.prepare(set_);
    for (const RestartPart& part : parts)
      if (status.ok()) status = start(part);
    memory_.close();
    if (status.ok()) {
      const int signals = ::signalfd(-1, &forwarded, SFD_CLOEXEC | SFD_NONBLOCK);
      status = relay(signals);
      ::close(signals);
    }
    for (const Started& s : started_) ::close(s.socket);  // tells the supervisors to end, if they have not
    for (const Started& s : started_)
      while (::waitpid(s.outer, nullptr, 0) < 0 && errno == EINTR) {
      }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!status.ok()) memory_.discard();
    return status;
  }

 private:
  struct Started {
    pid_t outer;
    int socket;
    std::size_t members, ended;
  };

  Status start(const RestartPart& part) {
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
      return Status(Code::kIo, errno, "cannot make a socket pair");
    const pid_t outer = ::fork();
    if (outer == 0) {
      ::close(sockets[0]);
      for (const Started& s : started_) ::close(s.socket);  // or it would not be told of the command's end
      run_outer(set_, part, options_, &memory_, sockets[1]);
    }
    const int error = errno;
    ::close(sockets[1]);
    if (outer > 0) started_.push_back({outer, sockets[0], part.size(), 0});
    if (outer > 0) return {};
    ::close(sockets[0]);
    return Status(Code::kIo, error, "cannot fork");
  }

  Status relay(int signals) {
    while (processes_.size() < set_.members.size()) {
      std::vector<pollfd> polls{{signals, POLLIN, 0}};
      for (const Started& s : started_) polls.push_back({s.ended < s.members ? s.socket : -1, POLLIN, 0});
      const bool rolls_back = roll_back_.pending() && restored_ == set_.members.size();
      const int ready = ::poll(polls.data(), polls.size(), rolls_back ? kRollBackMs : options_.watch ? kWatchMs : -1);
      if (ready < 0 && errno != EINTR) return Status(Code::kInternal, errno, "poll failed");
      forward_signals(signals);
      for (std::size_t i = 0; ready > 0 && i < started_.size(); ++i)
        if (polls[i + 1].revents != 0) SHADOWIB_TRY(take_message(&started_[i]));
      if (rolls_back) SHADOWIB_TRY(roll_back());
      if (options_.watch) SHADOWIB_TRY(options_.watch());
    }
    return {};
  }

  Status roll_back() {
    std::vector<pid_t> starters;
    for (const Started& s : started_) starters.push_back(s.outer);
    return roll_back_.step(starters);
  }

  void forward_signals(int signals) {
    signalfd_siginfo info{};
    while (::read(signals, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      // A terminal tells its foreground group, of which the command stands for what the members have forked too.
      const ForwardedSignal signal{static_cast<std::int32_t>(info.ssi_signo), info.ssi_code == SI_KERNEL};
      for (const Started& s : started_)
        [[maybe_unused]] const ssize_t n = ::send(s.socket, &signal, sizeof(signal), MSG_NOSIGNAL);
    }
  }

  Status take_message(Started* from) {
    SupervisorMessage message{};
    const ssize_t n = ::recv(from->socket, static_cast<void*>(&message), sizeof(message), 0);
    if (n != static_cast<ssize_t>(sizeof(message)))
      return Status(Code::kAborted, 0,
                    "the supervisor of the restarted processes was killed, and they with it; the set is as it was");
    if (message.kind == SupervisorMessage::kStatus) return message.status;
    if (message.kind == SupervisorMessage::kChecked) {
      if (++checked_ < started_.size()) return {};
      SHADOWIB_TRY(begin());
      const ForwardedSignal begun{0, 0};
      for (const Started& s : started_)
        if (::send(s.socket, &begun, sizeof(begun), MSG_NOSIGNAL) != sizeof(begun))
          return Status(Code::kAborted, errno, "the supervisor of the restarted processes is gone");
    }
    if (message.kind == SupervisorMessage::kRunning) {
      restored_ += from->members;
      if (restored_ == set_.members.size())
        report("restored " + std::to_string(restored_) + (restored_ == 1 ? " process" : " processes"));
    }
    if (message.kind == SupervisorMessage::kExited || message.kind == SupervisorMessage::kLeft) {
      ++from->ended;
      take_exit(message);
    }
    return {};
  }

  void take_exit(const SupervisorMessage& message) {
    int pid = 0;
    for (const MemberImage& m : set_.members)
      if (m.image.header.member == message.member) pid = m.image.process.pid;
    const bool left = message.kind == SupervisorMessage::kLeft;
    processes_.push_back({message.member, pid, message.value, left});
    const std::string how = left ? "; its parent has the status"
                            : WIFSIGNALED(message.value)
                                ? " with signal " + std::to_string(WTERMSIG(message.value))
                                : " with exit status " + std::to_string(WEXITSTATUS(message.value));
    report("member " + std::to_string(message.member) + " (pid " + std::to_string(pid) + ") ended" + how);
  }

  // Once.
  Status begin() {
    const Status status = options_.begin ? options_.begin() : Status();
    options_.begin = nullptr;
    return status;
  }

  void report(const std::string& line) {
    if (options_.report) options_.report(line);
  }

  const OpenedSet& set_;
  RestartOptions options_;
  std::vector<RestartedProcess>& processes_;
  SharedMemoryPlan memory_;
  RollBack roll_back_;
  std::vector<Started> started_;
  std::size_t checked_ = 0;  // parts whose content is
  std::size_t restored_ = 0;
};

}  // namespace

Status restart_set(const SetManifest& manifest, const RestartOptions& options,
                   std::vector<RestartedProcess>* processes) {
  processes->clear();
  OpenedSet set;
  Status status = open_members(manifest, options.members, &set);
  if (status.ok() && options.job.recovery != 0) status = judge_recovery(set);
  if (status.ok()) status = judge_parted(set);
  for (MemberImage& m : set.members)
    if (status.ok()) status = fit_to_processor(m.image, m.fd, &m.patches);
  if (status.ok()) status = Command(set, options, processes).run();
  close_members(&set);
  return status;
}

}  // namespace shadowib
