#include "libraries/bsp/run/local.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

namespace shadowib::bsprun {
namespace {

constexpr int kToEndByThemselvesMs = 1000;  // after an abort, which they have been told of
constexpr int kToEndBySignalMs = 2000;      // then SIGKILL
constexpr int kLeaseLookMs = 100;

long ms_of(clockid_t clock) {
  timespec now;
  ::clock_gettime(clock, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

// Files of this begin tell which processes have ended: PREFIX.<process>. In the job's directory, which hosts share.
std::string prefix_of_ends(const Options& options) {
  const char* variable = std::getenv("SHADOWIB_DIR");
  const std::string directory = !options.directory.empty()                 ? options.directory
                                : variable != nullptr && *variable != '\0' ? variable
                                                                           : "shadowib-ckpt";
  std::error_code error;
  return std::filesystem::absolute(directory, error).string() + "/jobs/" + options.job + "/bsp-ended." +
         options.epoch;
}

std::string meeting_of(const Options& options) { return prefix_of_ends(options) + ".meeting"; }

[[noreturn]] void become(const Options& options, int process, bool has_input) {
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!has_input) {
    const int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    if (null > STDIN_FILENO) ::close(null);
  }
  set("SHADOWIB_BSP_PROCESS", std::to_string(process));
  set("SHADOWIB_BSP_PROCESSES", std::to_string(options.processes));
  set("SHADOWIB_BSP_HERE", std::to_string(options.count));
  set("SHADOWIB_BSP_EPOCH", options.epoch);
  set("SHADOWIB_BSP_ENDS", prefix_of_ends(options));
  if (options.portable) {
    // bsprun takes the checkpoints. `shadowib run` notes how, for a restart, and removes both variables.
    options.interval.empty() ? ::unsetenv("SHADOWIB_BSP_INTERVAL")
                             : (set("SHADOWIB_BSP_INTERVAL", options.interval), 0);
    options.keep == 0 ? ::unsetenv("SHADOWIB_BSP_KEEP") : (set("SHADOWIB_BSP_KEEP", std::to_string(options.keep)), 0);
    set("SHADOWIB_BSP_MEETING", meeting_of(options));
    std::vector<std::string> words = portable_words(options, process);
    words.insert(words.begin(), shadowib_command());
    ::_exit(execute(std::move(words)));
  }
  ::unsetenv("SHADOWIB_BSP_MEETING");  // of a portable program that starts this one
  options.interval.empty() ? ::unsetenv("SHADOWIB_BSP_INTERVAL")
                           : (set("SHADOWIB_BSP_INTERVAL", options.interval), 0);
  std::vector<std::string> words{shadowib_command(), "run", "--job", options.job};
  if (!options.directory.empty()) words.insert(words.end(), {"--dir", options.directory});
  if (!options.backend.empty()) words.insert(words.end(), {"--backend", options.backend});
  if (options.keep != 0) words.insert(words.end(), {"--keep", std::to_string(options.keep)});
  words.push_back("--");
  words.insert(words.end(), options.program.begin(), options.program.end());
  ::_exit(execute(std::move(words)));
}

class Group {
 public:
  explicit Group(const Options& options, const Stop& stop) : options_(options), stop_(stop) {}

  Outcome run() {
    if (!start()) return {Outcome::Kind::kExit, options_.first, kUsage};
    // Of a share the bsprun takes them that has started it.
    if (!options_.is_share()) checkpoints_.emplace(options_);
    while (living_ > 0) step();
    checkpoints_.reset();
    return worst_;
  }

 private:
  bool start() {
    std::fflush(nullptr);  // what is buffered must not be written by each child, too
    for (int i = 0; i < options_.count; ++i) {
      const int process = options_.first + i;
      const pid_t pid = ::fork();
      if (pid == 0) become(options_, process, process == 0 && stop_.control < 0);
      if (pid < 0) {
        std::fprintf(stderr, "bsprun: cannot start process %d: %s\n", process, std::strerror(errno));
        signal_all(SIGKILL);
        while (::wait(nullptr) > 0) {
        }
        return false;
      }
      pids_.push_back(pid);
      ++living_;
    }
    return true;
  }

  long lease_ms() const { return static_cast<long>(1000 * options_.lease_s); }

  void signal_all(int signal) {
    for (const pid_t pid : pids_)
      if (pid > 0) ::kill(pid, signal);
  }

  // They end by themselves within `grace_ms`, or by SIGTERM, or by SIGKILL.
  void end_all(int grace_ms) {
    if (ending_) return;
    ending_ = true;
    terminate_at_ = now_ms() + grace_ms;
    kill_at_ = terminate_at_ + kToEndBySignalMs;
  }

  void step() {
    pollfd sources[2] = {{stop_.signals, POLLIN, 0}, {stop_.control, POLLIN, 0}};
    int patience = -1;
    if (ending_)
      patience = static_cast<int>(std::max(0L, (terminate_at_ != 0 ? terminate_at_ : kill_at_) - now_ms()));
    else if (options_.lease_s > 0)
      patience = kLeaseLookMs;
    else if (checkpoints_)
      patience = checkpoints_->wait_ms();
    ::poll(sources, stop_.control >= 0 && !ending_ ? 2 : 1, patience);
    signalfd_siginfo signal;
    while (::read(stop_.signals, &signal, sizeof(signal)) == sizeof(signal))
      if (signal.ssi_signo != SIGCHLD) stopped_by(static_cast<int>(signal.ssi_signo));
    if (stop_.control >= 0 && (sources[1].revents & (POLLIN | POLLHUP)) != 0) {
      char beats[64];
      heard_at_ = boot_ms();
      if (::read(stop_.control, beats, sizeof(beats)) <= 0) end_all(0);
    }
    if (stop_.control >= 0 && !ending_ && options_.lease_s > 0 && boot_ms() > heard_at_ + lease_ms()) {
      std::fprintf(stderr,
                   "bsprun: no word of the bsprun that has started these processes for %g s; they are ended\n",
                   options_.lease_s);
      worst_ = {Outcome::Kind::kSignal, options_.first, SIGTERM};
      end_all(0);
    }
    reap();
    if (!ending_ && living_ > 0 && checkpoints_) checkpoints_->step();
    if (!ending_ || living_ == 0) return;
    if (terminate_at_ != 0 && now_ms() >= terminate_at_) {
      terminate_at_ = 0;
      signal_all(SIGTERM);
    } else if (terminate_at_ == 0 && now_ms() >= kill_at_) {
      kill_at_ = now_ms() + kToEndBySignalMs;
      signal_all(SIGKILL);
    }
  }

  void stopped_by(int signal) {
    if (!ending_) worst_ = {Outcome::Kind::kExit, -1, 128 + signal};
    end_all(0);
  }

  void reap() {
    for (int status = 0;;) {
      const pid_t pid = ::waitpid(-1, &status, WNOHANG);
      if (pid <= 0) return;
      for (std::size_t i = 0; i < pids_.size(); ++i)
        if (pids_[i] == pid) ended(static_cast<int>(i), status);
    }
  }

  void ended(int place, int status) {
    pids_[place] = 0;
    --living_;
    const int process = options_.first + place;
    const Outcome outcome = WIFSIGNALED(status) ? Outcome{Outcome::Kind::kSignal, process, WTERMSIG(status)}
                                                : Outcome{Outcome::Kind::kExit, process, WEXITSTATUS(status)};
    if (ending_) return;
    if (ends_all(outcome)) {
      worst_ = outcome;
      if (outcome.kind == Outcome::Kind::kExit) tell_end("aborted");
      end_all(outcome.kind == Outcome::Kind::kExit ? kToEndByThemselvesMs : 0);
      return;
    }
    if (worst_.value == 0 && outcome.value != 0) worst_ = outcome;
    tell_end(std::to_string(process));
  }

  // Others may wait for it in bsp_begin(). They look for this now and then.
  // `who`: a process, or "aborted": the job.
  void tell_end(const std::string& who) {
    if (options_.processes == 1) return;
    const std::string file = ends_ + "." + who;
    const int fd = ::open(file.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) ::close(fd);
  }

  const Options& options_;
  const Stop& stop_;
  const std::string ends_ = prefix_of_ends(options_);
  std::vector<pid_t> pids_;
  int living_ = 0;
  bool ending_ = false;
  long terminate_at_ = 0, kill_at_ = 0;
  long heard_at_ = boot_ms();  // of a lease: the last word of who has started this share
  std::optional<Checkpoints> checkpoints_;
  Outcome worst_;
};

}  // namespace

std::string shadowib_command() {
  std::error_code error;
  const std::filesystem::path beside =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "shadowib";
  return std::filesystem::exists(beside, error) ? beside.string() : "shadowib";
}

int execute(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  std::fprintf(stderr, "bsprun: cannot execute %s: %s\n", arguments[0], std::strerror(errno));
  return kUsage;
}

long now_ms() { return ms_of(CLOCK_MONOTONIC); }
long boot_ms() { return ms_of(CLOCK_BOOTTIME); }

Checkpoints::Checkpoints(const Options& options) : options_(options) {
  if (!options.portable || options.interval.empty()) return;
  interval_ms_ = std::max(1L, static_cast<long>(1000 * std::atof(options.interval.c_str())));
  next_at_ = now_ms() + interval_ms_;
}

Checkpoints::~Checkpoints() {
  if (!is_under_way()) return;
  ::kill(command_, SIGTERM);
  ::waitpid(command_, nullptr, 0);
}

// Who waits for all children may have seen its end.
bool Checkpoints::is_under_way() {
  if (command_ > 0 && ::waitpid(command_, nullptr, WNOHANG) != 0) command_ = 0;
  return command_ > 0;
}

int Checkpoints::wait_ms() const {
  return interval_ms_ > 0 ? static_cast<int>(std::max(0L, next_at_ - now_ms())) : -1;
}

void Checkpoints::step() {
  if (interval_ms_ == 0 || now_ms() < next_at_) return;
  next_at_ = now_ms() + interval_ms_;
  if (is_under_way()) return;
  std::vector<std::string> words = checkpoint_words(options_);
  words.insert(words.begin(), shadowib_command());
  command_ = ::fork();
  if (command_ != 0) return;
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int null = ::open("/dev/null", O_RDWR);
  ::dup2(null, STDIN_FILENO);
  ::dup2(null, STDOUT_FILENO);  // the set's path
  ::_exit(execute(std::move(words)));
}

int catch_signals() {
  ::signal(SIGCHLD, SIG_DFL);  // the caller may ignore it: no end of a process would be seen
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  return ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

bool make_meeting(const Options& options) {
  std::error_code error;
  std::filesystem::create_directories(meeting_of(options), error);
  return !error;
}

void forget_ends(const Options& options) {
  std::error_code error;
  if (options.portable) std::filesystem::remove_all(meeting_of(options), error);
  const std::string ends = prefix_of_ends(options);
  for (int i = 0; i < options.processes; ++i) ::unlink((ends + "." + std::to_string(i)).c_str());
  for (const char* what : {".begun", ".aborted"}) ::unlink((ends + what).c_str());
}

Outcome run_here(const Options& options, const Stop& stop) { return Group(options, stop).run(); }

}  // namespace shadowib::bsprun
