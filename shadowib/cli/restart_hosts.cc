#include "shadowib/cli/restart_hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "shadowib/cli/history.h"
#include "shadowib/cli/inherited_signals.h"

namespace shadowib::cli {
namespace {

constexpr int kOfShell = 255;  // as ssh(1) says it
constexpr int kBeatStepMs = 20, kHoldStepMs = 100;
constexpr double kBeatsInLease = 4;

double boot_s() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// Passwords would stand in a command line. What a launcher has set here means nothing there.
bool is_forwarded(const std::string& name) {
  return name.starts_with("SHADOWIB_") && name.find("PASSWORD") == std::string::npos && name != "SHADOWIB_RSH";
}

// Signals for the members, each sent as a byte of its number; 'b' is a beat. Those of a terminal end remote shells,
// too.
constexpr int kRelayed[] = {SIGTERM, SIGUSR1, SIGUSR2};

bool is_relayed(int signal) {
  return std::find(std::begin(kRelayed), std::end(kRelayed), signal) != std::end(kRelayed);
}

struct Remote {
  std::string host;
  pid_t pid = -1;
  int control = -1;  // its standard input, which holds it
};

Status start_remote(const HostShare& share, const std::string& shell, std::vector<std::string> words,
                    Remote* remote) {
  words.insert(words.end(), {"--members", members_text(share.members)});
  const std::vector<std::string> local =
      command_line::words_for_host(shell, share.host, command_line::line_for_host(words, is_forwarded));
  std::vector<char*> arguments;
  for (const std::string& word : local) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0)
    return Status::of(Code::kIo, errno, "cannot make a pipe: %s", std::strerror(errno));
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    give_back_inherited_signals();
    ::dup2(pipe[0], STDIN_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(kRunNotFound);
  }
  ::close(pipe[0]);
  if (pid < 0) {
    ::close(pipe[1]);
    return Status::of(Code::kIo, errno, "cannot fork: %s", std::strerror(errno));
  }
  ::fcntl(pipe[1], F_SETFL, O_NONBLOCK);
  *remote = {share.host, pid, pipe[1]};
  return {};
}

std::string how_lost(int wait_status) {
  if (WIFSIGNALED(wait_status))
    return "its remote shell was killed by signal " + std::to_string(WTERMSIG(wait_status));
  const int code = WEXITSTATUS(wait_status);
  return code == kOfShell ? "its remote shell failed" : "shadowib cannot be run there (" + std::to_string(code) + ")";
}

class Shares {
 public:
  Shares(const Common& common, const std::string& job) : common_(common), job_(job) {}

  Status start(const std::vector<HostShare>& shares, const std::string& shell,
               const std::vector<std::string>& words) {
    for (const HostShare& share : shares) {
      Remote remote;
      if (const Status status = start_remote(share, shell, words, &remote); !status.ok()) {
        end_all();
        return status;
      }
      remotes_.push_back(remote);
    }
    return {};
  }

  // From then on signals for the members go to them, and not to this process.
  int await_ends(double lease_s) {
    ::signal(SIGPIPE, SIG_IGN);
    const int signals = take_signals();
    while (reap() > 0) {
      if (lease_s > 0) beat(lease_s);
      pollfd source{signals, POLLIN, 0};
      ::poll(&source, 1, lease_s > 0 || signals < 0 ? kBeatStepMs : -1);
      relay(signals);
    }
    if (signals >= 0) ::close(signals);
    return code_;
  }

 private:
  // A descriptor that tells of them, and of ended shells; -1: there is none to be had, and they end this process.
  static int take_signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (const int signal : kRelayed) sigaddset(&set, signal);
    const int fd = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (fd >= 0) ::sigprocmask(SIG_BLOCK, &set, nullptr);
    return fd;
  }

  void relay(int signals) {
    signalfd_siginfo info;
    while (::read(signals, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info)))
      if (const char number = static_cast<char>(info.ssi_signo); is_relayed(number))
        for (const Remote& remote : remotes_)
          if (remote.control >= 0) (void)!::write(remote.control, &number, 1);
  }

  // How many still live.
  std::size_t reap() {
    int wait_status = 0;
    pid_t pid = 0;
    while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0)
      for (Remote& remote : remotes_)
        if (remote.pid == pid) ended(&remote, wait_status);
    if (pid < 0 && errno != EINTR) return 0;
    return static_cast<std::size_t>(
        std::count_if(remotes_.begin(), remotes_.end(), [](const Remote& remote) { return remote.pid > 0; }));
  }

  void beat(double lease_s) {
    if (boot_s() < next_beat_s_) return;
    next_beat_s_ = boot_s() + lease_s / kBeatsInLease;
    for (const Remote& remote : remotes_)  // a pipe that is full has beats enough
      if (remote.control >= 0) (void)!::write(remote.control, "b", 1);
  }

  void end_all() {
    ending_ = true;
    for (Remote& remote : remotes_)
      if (remote.control >= 0) ::close(std::exchange(remote.control, -1));
  }

  void ended(Remote* remote, int wait_status) {
    remote->pid = -1;
    if (remote->control >= 0) ::close(std::exchange(remote->control, -1));
    if (ending_) return;
    if (is_lost_host(wait_status)) {
      const std::string how = how_lost(wait_status);
      std::fprintf(stderr, "shadowib: lost host %s: %s\n", remote->host.c_str(), how.c_str());
      note_event(common_.directory, job_, HistoryEvent("host_lost").add("on", remote->host).add("how", how));
      code_ = kLostHost;
      return end_all();
    }
    const int code = WEXITSTATUS(wait_status);
    if (code_ == 0) code_ = code;
    if (code != 0 && code != kRestartedProcessFailed) {  // it has told why
      code_ = code;
      end_all();
    }
  }

  const Common& common_;
  const std::string& job_;
  std::vector<Remote> remotes_;
  bool ending_ = false;
  int code_ = 0;
  double next_beat_s_ = 0;
};

}  // namespace

int run_shares(const Common& common, const std::string& job, const std::vector<HostShare>& shares,
               const std::string& shell, const std::vector<std::string>& words, double lease_s) {
  Shares running(common, job);
  const Status status = running.start(shares, shell, words);
  const int code = running.await_ends(lease_s);
  return status.ok() ? code : fail(common, status);
}

void hold_by_input(double lease_s) {
  const pid_t holder = ::getpid();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != holder) ::_exit(kOfShell);
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    if (null > STDIN_FILENO) ::close(null);
    return;
  }
  const int fd = child > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, child, 0)) : -1;
  pollfd sources[2] = {{STDIN_FILENO, POLLIN, 0}, {fd, POLLIN, 0}};
  for (double beat_s = boot_s(); fd >= 0 && (sources[1].revents & POLLIN) == 0;) {
    ::poll(sources, 2, lease_s > 0 ? kHoldStepMs : -1);
    char bytes[64];
    if ((sources[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof(bytes));
      if (n <= 0) break;
      beat_s = boot_s();
      for (ssize_t i = 0; i < n; ++i)
        if (is_relayed(bytes[i])) ::kill(child, bytes[i]);
    } else if (lease_s > 0 && boot_s() > beat_s + lease_s) {
      std::fprintf(stderr,
                   "shadowib: no word of the command that has started these members for %g s; they are ended\n",
                   lease_s);
      break;
    }
  }
  if ((sources[1].revents & POLLIN) == 0 && child > 0) ::kill(child, SIGKILL);
  int wait_status = 0;
  while (child > 0 && ::waitpid(child, &wait_status, 0) < 0 && errno == EINTR) {
  }
  if (child < 0) std::fprintf(stderr, "shadowib: cannot fork: %s\n", std::strerror(errno));
  std::fflush(nullptr);
  ::_exit(child > 0 && WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : kOfShell);
}

}  // namespace shadowib::cli
