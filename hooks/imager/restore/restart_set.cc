// The command's side of a restart: reads the images, starts the supervisor, passes signals down and results up.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hooks/imager/restart.h"
#include "hooks/imager/restore/members.h"
#include "hooks/imager/restore/namespaces.h"
#include "hooks/imager/restore/processor_check.h"
#include "hooks/imager/restore/supervisor.h"
#include "hooks/sanitizer_thread.h"

namespace shadowib {
namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// In the first child: makes the namespaces, then their first process, and waits for it.
[[noreturn]] void run_outer(std::vector<MemberImage>* members, const RestartOptions& options, int command_fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  await_single_thread();
  const Status status = enter_namespaces(clock_floor(*members));
  if (!status.ok()) {
    const SupervisorMessage message{SupervisorMessage::kStatus, 0, 0, status};
    [[maybe_unused]] const ssize_t n = ::send(command_fd, &message, sizeof(message), MSG_NOSIGNAL);
    ::_exit(1);
  }
  const pid_t inner = ::fork();
  if (inner == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(supervise(members, options, command_fd));
  }
  if (inner < 0) {
    const SupervisorMessage message{SupervisorMessage::kStatus, 0, 0,
                                    Status(Code::kPermission, errno,
                                           "cannot start the first process of the pid namespace; "
                                           "see the limits on processes (ulimit -u) and kernel.pid_max")};
    [[maybe_unused]] const ssize_t n = ::send(command_fd, &message, sizeof(message), MSG_NOSIGNAL);
    ::_exit(1);
  }
  ::close(command_fd);
  int wait_status = 0;
  while (::waitpid(inner, &wait_status, 0) < 0 && errno == EINTR) {
  }
  ::_exit(WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 1);
}

class Command {
 public:
  Command(const RestartOptions& options, std::vector<RestartedProcess>* processes)
      : options_(options), processes_(*processes) {}

  Status run(std::vector<MemberImage>* members) {
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
      return Status(Code::kIo, errno, "cannot make a socket pair");
    sigset_t forwarded, before;
    ::sigemptyset(&forwarded);
    for (const int signal : kForwarded) ::sigaddset(&forwarded, signal);
    ::pthread_sigmask(SIG_BLOCK, &forwarded, &before);
    end_sanitizer_thread();
    const pid_t outer = ::fork();
    if (outer == 0) {
      ::close(sockets[0]);
      run_outer(members, options_, sockets[1]);
    }
    ::close(sockets[1]);
    Status status;
    if (outer < 0) {
      status = Status(Code::kIo, errno, "cannot fork");
    } else {
      const int signals = ::signalfd(-1, &forwarded, SFD_CLOEXEC | SFD_NONBLOCK);
      status = relay(sockets[0], signals, *members);
      ::close(signals);
    }
    ::close(sockets[0]);  // tells the supervisor to end, if it has not
    if (outer > 0)
      while (::waitpid(outer, nullptr, 0) < 0 && errno == EINTR) {
      }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status;
  }

 private:
  Status relay(int supervisor, int signals, const std::vector<MemberImage>& members) {
    while (processes_.size() < members.size()) {
      pollfd polls[2] = {{supervisor, POLLIN, 0}, {signals, POLLIN, 0}};
      if (::poll(polls, 2, -1) < 0 && errno != EINTR) return Status(Code::kInternal, errno, "poll failed");
      signalfd_siginfo info{};
      while (::read(signals, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
        const auto signal = static_cast<std::int32_t>(info.ssi_signo);
        [[maybe_unused]] const ssize_t n = ::send(supervisor, &signal, sizeof(signal), MSG_NOSIGNAL);
      }
      if (polls[0].revents == 0) continue;
      SupervisorMessage message{};
      const ssize_t n = ::recv(supervisor, static_cast<void*>(&message), sizeof(message), 0);
      if (n != static_cast<ssize_t>(sizeof(message)))
        return Status(Code::kInternal, 0, "the supervisor of the restarted processes died, and they with it");
      if (message.kind == SupervisorMessage::kStatus) return message.status;
      if (message.kind == SupervisorMessage::kRunning)
        report("restored " + std::to_string(members.size()) + (members.size() == 1 ? " process" : " processes"));
      if (message.kind == SupervisorMessage::kExited) take_exit(message, members);
    }
    return {};
  }

  void take_exit(const SupervisorMessage& message, const std::vector<MemberImage>& members) {
    int pid = 0;
    for (const MemberImage& m : members)
      if (m.image.header.member == message.member) pid = m.image.process.pid;
    processes_.push_back({message.member, pid, message.value});
    const bool killed = WIFSIGNALED(message.value);
    report("member " + std::to_string(message.member) + " (pid " + std::to_string(pid) + ") ended with " +
           (killed ? "signal " + std::to_string(WTERMSIG(message.value))
                   : "exit status " + std::to_string(WEXITSTATUS(message.value))));
  }

  void report(const std::string& line) {
    if (options_.report) options_.report(line);
  }

  const RestartOptions& options_;
  std::vector<RestartedProcess>& processes_;
};

}  // namespace

Status restart_set(const SetManifest& manifest, const RestartOptions& options,
                   std::vector<RestartedProcess>* processes) {
  processes->clear();
  std::vector<MemberImage> members;
  Status status = open_members(manifest, &members);
  for (const MemberImage& m : members)
    if (status.ok()) status = check_processor(m.image);
  if (status.ok()) {
    Command command(options, processes);
    status = command.run(&members);
  }
  close_members(members);
  return status;
}

}  // namespace shadowib
