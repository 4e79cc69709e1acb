#include "libraries/bsp/run/hosts.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "libraries/bsp/run/local.h"
#include "shadowib/command_line/architecture.h"

namespace shadowib::bsprun {
namespace {

constexpr char kMark = '\x1e';
constexpr std::size_t kLongestWords = 128;
// A share that is to end needs three seconds at most (local.cc); one that is silent for so long is lost.
constexpr long kToEndMs = 15000;
constexpr int kBeatsInLease = 4;

void write_all(int fd, const char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = ::write(fd, data, bytes);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) data += n, bytes -= static_cast<std::size_t>(n);
  }
}

std::string remote_command(const Options& options, const Share& share, const std::string& token) {
  std::error_code error;
  const std::string bsprun = std::filesystem::read_symlink("/proc/self/exe", error).string();
  return command_line::line_for_host(share_words(options, share, bsprun, token), is_forwarded);
}

// A share as this side sees it.
struct Remote {
  Share share;
  pid_t pid = -1;
  int control = -1, output = -1;  // its input, which ends it; its output
  std::string held;               // of the output: what may be its last words
  bool has_spoken = false;
  Outcome outcome;
};

class Shares {
 public:
  Shares(const Options& options, int signals) : options_(options), signals_(signals) {}

  Outcome run(const std::vector<Share>& shares, std::string* host) {
    for (const Share& share : shares)
      if (!start(share)) break;
    if (options_.lease_s > 0) ::signal(SIGPIPE, SIG_IGN);  // a share that has ended hears no beat
    while (std::any_of(remotes_.begin(), remotes_.end(), [](const Remote& r) { return r.pid > 0; })) {
      step();
      if (std::none_of(remotes_.begin(), remotes_.end(), [](const Remote& r) { return r.output >= 0; })) end_all();
    }
    *host = host_;
    return worst_;
  }

 private:
  // False: there is no process or descriptor left for it; all are ending.
  bool start(const Share& share) {
    const char* shell = std::getenv("SHADOWIB_RSH");
    const std::vector<std::string> words = command_line::words_for_host(
        shell != nullptr && *shell != '\0' ? shell : "ssh", share.host, remote_command(options_, share, token_));
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    std::fflush(nullptr);
    const bool has_pipes = ::pipe2(in, O_CLOEXEC) == 0 && ::pipe2(out, O_CLOEXEC) == 0;
    const pid_t pid = has_pipes ? ::fork() : -1;
    if (pid == 0) {
      sigset_t none;
      ::sigemptyset(&none);
      ::sigprocmask(SIG_SETMASK, &none, nullptr);
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::execv(arguments[0], arguments.data());
      ::_exit(kUsage);
    }
    if (pid < 0) {
      std::fprintf(stderr, "bsprun: cannot start the share of %s: %s\n", share.host.c_str(), std::strerror(errno));
      for (const int fd : {in[0], in[1], out[0], out[1]})
        if (fd >= 0) ::close(fd);
      worst_ = {Outcome::Kind::kExit, -1, kUsage};
      end_all();
      return false;
    }
    ::close(in[0]);
    ::close(out[1]);
    ::fcntl(in[1], F_SETFL, O_NONBLOCK);
    remotes_.push_back({share, pid, in[1], out[0], {}, false, {}});
    return true;
  }

  void step() {
    std::vector<pollfd> sources{{signals_, POLLIN, 0}};
    for (const Remote& remote : remotes_) sources.push_back({remote.output, POLLIN, 0});
    ::poll(sources.data(), sources.size(), wait_ms());
    signalfd_siginfo signal;
    while (::read(signals_, &signal, sizeof(signal)) == sizeof(signal)) {
      if (signal.ssi_signo == SIGCHLD) continue;
      if (!ending_) worst_ = {Outcome::Kind::kExit, -1, 128 + static_cast<int>(signal.ssi_signo)};
      end_all();
    }
    for (std::size_t i = 0; i < remotes_.size(); ++i)
      if ((sources[i + 1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) listen(&remotes_[i]);
    reap();
    if (ending_ && now_ms() >= give_up_at_) give_up();
    if (ending_) return;
    if (options_.lease_s > 0) beat();
    checkpoints_.step();
  }

  int wait_ms() const {
    if (ending_) return static_cast<int>(std::max(0L, give_up_at_ - now_ms()));
    const int beat = options_.lease_s > 0 ? static_cast<int>(std::max(0L, beat_at_ - now_ms())) : -1;
    const int checkpoint = checkpoints_.wait_ms();
    return beat < 0 || checkpoint < 0 ? std::max(beat, checkpoint) : std::min(beat, checkpoint);
  }

  // A share that hears nothing for the lease ends. A pipe that is full has beats enough.
  void beat() {
    if (now_ms() < beat_at_) return;
    beat_at_ = now_ms() + static_cast<long>(1000 * options_.lease_s) / kBeatsInLease;
    for (const Remote& remote : remotes_)
      if (remote.control >= 0) (void)!::write(remote.control, "b", 1);
  }

  // A shell may live for some time after its output has ended.
  void reap() {
    for (Remote& remote : remotes_)
      if (remote.pid > 0 && remote.output < 0 && ::waitpid(remote.pid, nullptr, WNOHANG) != 0) remote.pid = -1;
  }

  void give_up() {
    for (Remote& remote : remotes_) {
      if (remote.pid < 0) continue;
      if (remote.output >= 0) {
        std::fprintf(stderr,
                     remote.has_spoken ? "bsprun: a process that was left on host %s holds the output of job %s\n"
                                       : "bsprun: host %s does not answer; processes of job %s may live on there\n",
                     remote.share.host.c_str(), options_.job.c_str());
        ended(&remote);
      }
      ::kill(remote.pid, SIGKILL);
      ::waitpid(remote.pid, nullptr, 0);
      remote.pid = -1;
    }
  }

  void end_all() {
    if (!ending_) give_up_at_ = now_ms() + kToEndMs;
    ending_ = true;
    for (Remote& remote : remotes_)
      if (remote.control >= 0) ::close(std::exchange(remote.control, -1));
  }

  void listen(Remote* remote) {
    char buffer[65536];
    const ssize_t n = ::read(remote->output, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) return;
    if (n <= 0) return ended(remote);
    remote->held.append(buffer, static_cast<std::size_t>(n));
    pass_on(remote);
    // It answers, however slowly its output is taken. What comes after its last words is of a process that it left.
    if (ending_ && !remote->has_spoken) give_up_at_ = now_ms() + kToEndMs;
  }

  // Everything but the last words, and what may become them.
  void pass_on(Remote* remote) {
    std::string& held = remote->held;
    const std::string head = kMark + token_ + " ";
    for (std::size_t at = 0; (at = held.find(kMark, at)) != std::string::npos; ++at) {
      const std::size_t end = held.find('\n', at);
      const std::string rest = held.substr(at, std::min(held.size() - at, kLongestWords));
      if (end != std::string::npos && read_last_words(token_, rest, &remote->outcome)) {
        remote->has_spoken = true;
        held.erase(at, end - at + 1);
        judge(*remote);  // what was left there may hold the output
        break;
      }
      if (rest.compare(0, head.size(), head, 0, rest.size()) == 0 &&
          end == std::string::npos) {  // it begins like them
        write_all(STDOUT_FILENO, held.data(), at);
        held.erase(0, at);
        return;
      }
    }
    write_all(STDOUT_FILENO, held.data(), held.size());
    held.clear();
  }

  // ssh's own exit code says nothing: 255 may be the program's.
  void ended(Remote* remote) {
    write_all(STDOUT_FILENO, remote->held.data(), remote->held.size());
    ::close(std::exchange(remote->output, -1));
    if (remote->control >= 0) ::close(std::exchange(remote->control, -1));
    if (remote->has_spoken) return;
    remote->outcome = {Outcome::Kind::kLost, -1, 0};
    judge(*remote);
  }

  // A share is over.
  void judge(const Remote& remote) {
    if (ending_) return;
    if (ends_all(remote.outcome)) {
      worst_ = remote.outcome;
      host_ = remote.share.host;
      end_all();
    } else if (worst_.value == 0 && remote.outcome.value != 0) {
      worst_ = remote.outcome;
    }
  }

  static std::string random_token() {
    unsigned char bytes[16] = {};
    const int fd = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || ::read(fd, bytes, sizeof(bytes)) != sizeof(bytes))
      std::fprintf(stderr, "bsprun: no random bytes\n");
    ::close(fd);
    std::string text;
    for (const unsigned char byte : bytes) {
      char hex[3];
      std::snprintf(hex, sizeof(hex), "%02x", byte);
      text += hex;
    }
    return text;
  }

  const Options& options_;
  const int signals_;
  const std::string token_ = random_token();
  std::vector<Remote> remotes_;
  bool ending_ = false;
  long give_up_at_ = 0, beat_at_ = 0;
  Checkpoints checkpoints_{options_};
  Outcome worst_;
  std::string host_;
};

}  // namespace

Outcome run_on_hosts(const Options& options, const std::vector<Share>& shares, int signals, std::string* host) {
  return Shares(options, signals).run(shares, host);
}

int run_share(Options options, int signals) {
  // The processes have the output; the words follow when all have ended.
  Outcome outcome{Outcome::Kind::kExit, -1, kUsage};
  const std::string why = choose_programs(command_line::this_architecture(), &options);
  if (why.empty())
    outcome = run_here(options, {signals, STDIN_FILENO});
  else
    std::fprintf(stderr, "bsprun: processes %d to %d: on their host: %s\n", options.first,
                 options.first + options.count - 1, why.c_str());
  const std::string words = last_words(options.share_token, outcome);
  write_all(STDOUT_FILENO, words.data(), words.size());
  return 0;
}

}  // namespace shadowib::bsprun
