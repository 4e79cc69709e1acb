#include "shadowib/cli/supervise/notice_command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "shadowib/base/lock.h"
#include "shadowib/cli/supervise/processes.h"

namespace shadowib::cli {
namespace {

constexpr std::int64_t kEveryNs = 5'000'000'000, kLateNs = 60'000'000'000;
constexpr std::size_t kMostPrinted = 4096;

}  // namespace

bool NoticeCommand::step(Said* said, double* left_s) {
  if (settings_.notice.command.empty()) return false;
  if (pid_ > 0) {
    take_output();
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) {  // or it was reaped as an orphan
      take_output();
      pid_ = -1;
      ::close(std::exchange(output_, -1));
      return answer(said, left_s);
    }
    if (monotonic_ns() < late_ns_) return false;
    tell(settings_, "--notice: the command has not ended within 60 s; it is asked again");
    stop();
  }
  if (monotonic_ns() >= next_ns_) start();
  return false;
}

// What it complains of goes where this command's complaints go.
void NoticeCommand::start() {
  next_ns_ = monotonic_ns() + kEveryNs;
  late_ns_ = monotonic_ns() + kLateNs;
  printed_.clear();
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0) return;
  ::fcntl(pipe[1], F_SETFL, 0);
  const Status status =
      start_process({"/bin/sh", "-c", settings_.notice.command}, pipe[1], &pid_, TakenOutput::kWithoutErrors);
  ::close(pipe[1]);
  if (status.ok()) {
    output_ = pipe[0];
    spare(pid_);
    return;
  }
  ::close(pipe[0]);
  tell(settings_, "--notice: " + std::string(status.text()));
}

void NoticeCommand::stop() {
  if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) ::close(output_);
  pid_ = output_ = -1;
}

void NoticeCommand::take_output() {
  char text[1024];
  for (ssize_t n; (n = ::read(output_, text, sizeof(text))) > 0;)
    if (printed_.size() < kMostPrinted) printed_.append(text, static_cast<std::size_t>(n));
}

bool NoticeCommand::answer(Said* said, double* left_s) {
  *said = parse_seconds_left(printed_, left_s);
  if (*said != Said::kNonsense) return true;
  std::string line = printed_.substr(printed_.find_first_not_of(" \t\r\n"));
  line = line.substr(0, std::min<std::size_t>(line.find('\n'), 60));
  if (line != complained_) tell(settings_, "--notice: '" + line + "' is no number of seconds; it is ignored");
  complained_ = line;
  return false;
}

}  // namespace shadowib::cli
