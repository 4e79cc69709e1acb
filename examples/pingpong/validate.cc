// Validation: both ends under `shadowib run`, a checkpoint at a random moment, kill, restart, finish, verdict.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "examples/pingpong/options.h"
#include "hooks/command/coordinator.h"
#include "shadowib/base/json_value.h"

extern char** environ;

namespace pingpong {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A started process and what it prints on standard output.
class Process {
 public:
  Process(const std::vector<std::string>& arguments) {
    int out[2];
    if (::pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    // Whatever this tool was started with, a build tool's pipes say, leads outside the job and would be refused.
    ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    std::vector<char*> argv;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    int rc = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(out[1]);
    out_ = out[0];
    if (rc != 0) throw std::runtime_error("cannot start " + arguments[0] + ": " + std::strerror(rc));
  }
  ~Process() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(out_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Next line, or false at the end of the output or after `limit` seconds.
  bool next_line(std::string* line, double limit) {
    auto start = Clock::now();
    for (;;) {
      if (std::size_t end = text_.find('\n'); end != std::string::npos) {
        *line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return true;
      }
      pollfd p{out_, POLLIN, 0};
      int left = static_cast<int>((limit - seconds_since(start)) * 1000);
      if (left <= 0 || ::poll(&p, 1, left) <= 0) return false;
      char buffer[4096];
      ssize_t n = ::read(out_, buffer, sizeof(buffer));
      if (n <= 0) return false;
      text_.append(buffer, static_cast<std::size_t>(n));
    }
  }
  // Value behind the first line that begins with "@word ", or -1.
  long long await(const std::string& word, double limit) {
    std::string line;
    while (next_line(&line, limit))
      if (line.rfind("@" + word + " ", 0) == 0) return std::stoll(line.substr(word.size() + 2));
    return -1;
  }
  int wait() {
    std::string line;
    while (next_line(&line, 600)) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string text_;
};

constexpr int kRestartedProcessFailed = 20;  // exit code of `shadowib restart`, see shadowib-restart(1)

struct Round {
  std::uint64_t messages_before = 0;
  double settle_ms = 0, checkpoint_s = 0, restart_s = 0;
  std::uint64_t image_bytes = 0;
};

class Validation {
 public:
  explicit Validation(const Options& options) : o_(options), random_(seed()) {}

  int run() {
    prepare();
    try {
      start();
      for (int i = 0; i < o_.rounds; ++i) checkpoint_and_restart();
      finish();
    } catch (const std::exception& e) {
      failure_ = e.what();
    }
    report();
    ends_.clear();
    if (!o_.keep && failure_.empty() && o_.directory.empty()) fs::remove_all(directory_);
    return failure_.empty() ? 0 : 1;
  }

 private:
  std::uint64_t seed() { return seed_ = o_.seed != 0 ? o_.seed : std::random_device{}(); }
  // Messages of the stretch before the first checkpoint and of the one after the last restart.
  std::uint64_t iterations() const {
    return o_.iterations != 0 ? o_.iterations : std::max<std::uint64_t>(2000, 300000000ull / (o_.size + 2000));
  }

  void prepare() {
    char self[4096];
    ssize_t n = ::readlink("/proc/self/exe", self, sizeof(self) - 1);
    self_ = std::string(self, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    command_ = fs::path(self_).parent_path() / "shadowib";
    std::string pattern = (fs::temp_directory_path() / "shadowib-pingpong-XXXXXX").string();
    directory_ = o_.directory.empty() ? std::string(::mkdtemp(pattern.data())) : fs::absolute(o_.directory).string();
    job_ = "pingpong-" + std::to_string(::getpid());
    ::setenv("SHADOWIB_IB2TCP_TRANSPORT", o_.transport.c_str(), 1);
  }

  static int free_port() {
    int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) throw std::runtime_error("no free TCP port");
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
    ::close(fd);
    return ntohs(address.sin_port);
  }

  std::vector<std::string> end_command(int port) const {
    std::vector<std::string> c{command_,
                               "run",
                               "--job",
                               job_,
                               "--dir",
                               directory_,
                               "--backend",
                               o_.backend,
                               "--",
                               self_,
                               "--progress",
                               "-p",
                               std::to_string(port),
                               "-s",
                               std::to_string(o_.size),
                               "-n",
                               std::to_string(iterations()),
                               "-r",
                               std::to_string(o_.rx_depth),
                               "-w",
                               std::to_string(o_.window),
                               "--restarts",
                               std::to_string(o_.rounds),
                               "-m",
                               std::to_string(o_.mtu),
                               "-i",
                               std::to_string(o_.ib_port)};
    if (!o_.device.empty()) c.insert(c.end(), {"-d", o_.device});
    if (o_.gid_index >= 0) c.insert(c.end(), {"-g", std::to_string(o_.gid_index)});
    if (o_.events) c.push_back("-e");
    return c;
  }

  void start() {
    int port = free_port();
    auto server = end_command(port), client = server;
    server.push_back("--server");
    client.push_back("127.0.0.1");
    ends_.push_back(std::make_unique<Process>(server));
    if (ends_[0]->await("listening", 60) < 0) throw std::runtime_error("the server did not start");
    ends_.push_back(std::make_unique<Process>(client));
  }

  // Waits until the job has exchanged `target` messages.
  void await_messages(std::uint64_t target) {
    long long at;
    while ((at = ends_.back()->await("progress", 120)) >= 0)
      if (static_cast<std::uint64_t>(at) >= target) return;
    throw std::runtime_error("the job ended or stood still before the moment chosen for a checkpoint");
  }

  void checkpoint_and_restart() {
    Round round;
    // A random number of messages after the start or the last restart, then a random fraction of a millisecond more.
    // The job does not end before its last restart, so there is no race to lose.
    await_messages(done_ + 1 + std::uniform_int_distribution<std::uint64_t>(0, iterations())(random_));
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 1000));

    shadowib::CheckpointOptions options;
    options.directory = directory_;
    options.job = job_;
    options.kill = true;
    shadowib::CheckpointReport set;
    auto begin = Clock::now();
    shadowib::Status status = shadowib::run_checkpoint(options, &set);
    if (!status.ok()) throw std::runtime_error(std::string("checkpoint: ") + status.text());
    round.checkpoint_s = seconds_since(begin);
    for (const shadowib::MemberReport& m : set.members) {
      round.settle_ms = std::max(round.settle_ms, static_cast<double>(m.settle_ns) / 1e6);
      round.image_bytes += m.bytes;
    }
    round.messages_before = static_cast<std::uint64_t>(std::max(0ll, ends_.back()->await("checkpoint", 10)));
    // The restart command itself lives on and says by its code that the processes did not end by themselves.
    int expected = rounds_.empty() ? 128 + SIGKILL : kRestartedProcessFailed;
    for (auto& end : ends_)
      if (int code = end->wait(); code != expected)
        throw std::runtime_error("an end was not killed but ended with code " + std::to_string(code));
    ends_.clear();

    begin = Clock::now();
    ends_.push_back(
        std::make_unique<Process>(std::vector<std::string>{command_, "restart", "--dir", directory_, set.set_path}));
    // Both ends report; the message counts of the two may differ by what was in flight.
    long long after = std::max(ends_[0]->await("restart", 120), ends_[0]->await("restart", 120));
    if (after < 0) throw std::runtime_error("the restarted job does not run");
    round.restart_s = seconds_since(begin);
    done_ = std::max(round.messages_before, static_cast<std::uint64_t>(after));
    rounds_.push_back(round);
  }

  void finish() {
    long long total = ends_.back()->await("done", 600);
    if (total < 0) throw std::runtime_error("the restarted job did not finish");
    total_ = static_cast<std::uint64_t>(total);
    for (auto& end : ends_)
      if (int code = end->wait(); code != 0)
        throw std::runtime_error("the restarted job ended with code " + std::to_string(code));
  }

  void report() const {
    const char* verdict = failure_.empty() ? "ok" : "FAILED";
    if (o_.json) {
      shadowib::Json j{{"verdict", verdict},        {"failure", failure_},   {"seed", seed_},
                       {"messages", total_},        {"size_bytes", o_.size}, {"window", o_.window},
                       {"transport", o_.transport}, {"events", o_.events}};
      for (const Round& r : rounds_)
        j["rounds"].push_back({{"settle_ms", r.settle_ms},
                               {"image_bytes", r.image_bytes},
                               {"checkpoint_s", r.checkpoint_s},
                               {"restart_s", r.restart_s},
                               {"messages_before", r.messages_before},
                               {"messages_after", total_ > r.messages_before ? total_ - r.messages_before : 0}});
      std::printf("%s\n", j.dump(2).c_str());
      return;
    }
    std::printf("shadowib-pingpong: %" PRIu64
                " messages of %u bytes each way, window %u, transport %s%s, seed %" PRIu64 "\n\n",
                total_, o_.size, o_.window, o_.transport.c_str(), o_.events ? ", events" : "", seed_);
    std::printf("  %5s  %11s  %11s  %14s  %11s  %15s  %14s\n", "round", "settle (ms)", "images (MB)",
                "checkpoint (s)", "restart (s)", "messages before", "messages after");
    for (std::size_t i = 0; i < rounds_.size(); ++i) {
      const Round& r = rounds_[i];
      std::printf("  %5zu  %11.2f  %11.1f  %14.3f  %11.3f  %15" PRIu64 "  %14" PRIu64 "\n", i + 1, r.settle_ms,
                  static_cast<double>(r.image_bytes) / 1e6, r.checkpoint_s, r.restart_s, r.messages_before,
                  total_ > r.messages_before ? total_ - r.messages_before : 0);
    }
    std::printf("\n  verdict: %s\n", verdict);
    if (!failure_.empty())
      std::printf("  %s\n  the sets and the job's files are in %s; repeat with --seed %" PRIu64 "\n",
                  failure_.c_str(), directory_.c_str(), seed_);
  }

  const Options& o_;
  std::uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::string self_, command_, directory_, job_, failure_;
  std::vector<std::unique_ptr<Process>> ends_;
  std::vector<Round> rounds_;
  std::uint64_t done_ = 0;   // messages exchanged when the last restart ended
  std::uint64_t total_ = 0;  // when the job ended
};

}  // namespace

int validate(const Options& options) { return Validation(options).run(); }

}  // namespace pingpong
