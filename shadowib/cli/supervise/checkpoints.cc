#include "shadowib/cli/supervise/checkpoints.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "shadowib/base/lock.h"
#include "shadowib/cli/supervise/processes.h"
#include "shadowib/cli/wall_clock.h"

namespace shadowib::cli {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr unsigned kMostBusy = 6;  // in a row that are not told

std::int64_t now_ms() { return wall_clock_ns() / 1'000'000; }

std::int64_t ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

}  // namespace

Status read_events(const SuperviseSettings& settings, std::vector<PastEvent>* events) {
  unsigned torn = 0;
  const Status status = read_history(settings.common.directory, settings.job, events, &torn);
  return status.code() == Code::kNotFound ? Status() : status;
}

std::vector<PastEvent> events_of(const SuperviseSettings& settings) {
  std::vector<PastEvent> events;
  (void)read_events(settings, &events).ok();
  return events;
}

void Checkpoints::begin() {
  failures_ = 0;
  members_ = 0;
  began_ns_ = monotonic_ns();
  first_interval_s_ = first_interval_s(settings_.pace, events_of(settings_), now_ms());
  due_ns_ = first_due_ns(began_ns_, 0, first_interval_s_);
}

void Checkpoints::note_members(std::size_t members) {
  if (members == members_) return;
  members_ = members;
  if (first_interval_s_ > 0) due_ns_ = first_due_ns(began_ns_, monotonic_ns(), first_interval_s_);
}

void Checkpoints::hurry() {
  first_interval_s_ = 0;
  due_ns_ = began_ns_;
}

void Checkpoints::stop() {
  due_ns_ = 0;
  if (command_ > 0) {
    ::kill(command_, SIGKILL);
    while (::waitpid(command_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (output_ >= 0) ::close(output_);
  command_ = output_ = -1;
}

bool Checkpoints::due() const { return command_ <= 0 && members_ > 0 && due_ns_ != 0 && monotonic_ns() >= due_ns_; }

bool Checkpoints::step() {
  if (command_ <= 0) return false;
  take_output();
  int wait_status = 0;
  return ::waitpid(command_, &wait_status, WNOHANG) == command_ && finish(wait_status);
}

void Checkpoints::start(unsigned keep, double timeout_s, bool kill) {
  int pipe[2];
  first_interval_s_ = 0;
  is_last_ = kill;
  due_ns_ = monotonic_ns() + kSecondNs;  // if it cannot be started
  if (::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
  ::fcntl(pipe[1], F_SETFL, 0);
  char timeout[32];
  std::snprintf(timeout, sizeof(timeout), "%g", timeout_s);
  std::vector<std::string> words{"checkpoint", settings_.job, "--timeout", timeout};
  if (keep != 0) words.insert(words.end(), {"--keep", std::to_string(keep)});
  if (kill) words.emplace_back("--kill");
  if (!settings_.metrics.empty()) words.insert(words.end(), {"--metrics", settings_.metrics});
  said_.clear();
  const Status status = start_process(command_line_of(settings_, words), pipe[1], &command_);
  ::close(pipe[1]);
  if (status.ok()) {
    output_ = pipe[0];
    return;
  }
  ::close(pipe[0]);
  tell(settings_, status.text());
}

// Told only if it fails: a job of a month has thousands.
void Checkpoints::take_output() {
  char text[4096];
  for (ssize_t n; (n = ::read(output_, text, sizeof(text))) > 0;) said_.append(text, static_cast<std::size_t>(n));
}

bool Checkpoints::finish(int wait_status) {
  take_output();
  command_ = -1;
  ::close(output_);
  output_ = -1;
  const bool committed = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
  failures_ = committed ? 0 : failures_ + 1;
  const double interval = interval_s(settings_.pace, events_of(settings_), now_ms());
  constexpr int kBusy = static_cast<int>(Code::kBusy);  // somebody joins, or an operator takes one: it passes
  const bool busy = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kBusy;
  due_ns_ = monotonic_ns() + ns(committed ? interval : retry_s(failures_, interval, is_last_, busy));
  if (committed) return true;
  if (!busy || failures_ > kMostBusy) {
    while (said_.ends_with('\n')) said_.pop_back();
    tell(settings_, "no checkpoint: " + said_.substr(said_.rfind('\n') + 1));
  }
  return false;
}

}  // namespace shadowib::cli
