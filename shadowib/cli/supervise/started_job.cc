#include "shadowib/cli/supervise/started_job.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "hooks/job/protocol.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/supervise/processes.h"
#include "shadowib/exchange/exchange.h"

namespace shadowib::cli {
namespace {

constexpr std::int64_t kFirstWordNs = 5'000'000'000, kNextWordNs = 60'000'000'000;
constexpr std::int64_t kLastWordNs = 10'000'000'000;
constexpr int kStepUs = 20'000;

// Members of any host hear of it as long as the exchange is there.
void publish_end(const SuperviseSettings& settings, const std::string& epoch, const std::string& why) {
  std::string uri = exchange_of(settings.common, settings.job);
  std::unique_ptr<Exchange> exchange;
  if (!settle_exchange(job_paths(settings.common.directory, settings.job).password, &uri).ok()) return;
  if (!Exchange::open(uri, false, &exchange).ok()) return;
  (void)exchange->publish(epoch + "/control/abort", encode_fields({{"everyone", "1"}, {"text", why}})).ok();
}

}  // namespace

Status StartedJob::start_command() {
  std::vector<std::string> words{"run", "--job", settings_.job};
  words = command_line_of(settings_, std::move(words));
  words.emplace_back("--");
  words.insert(words.end(), settings_.command.begin(), settings_.command.end());
  restarts_ = false;
  return start_process(words, -1, &command_);
}

Status StartedJob::restart(std::uint32_t set, bool roll_back, const std::vector<command_line::Host>& hosts) {
  std::vector<std::string> words{"restart", set_name(settings_.job, set), "--files",
                                 roll_back ? "roll-back" : "keep"};
  if (!hosts.empty()) words.insert(words.end(), {"--hosts", command_line::hosts_text(hosts), "--rsh", settings_.rsh});
  if (!hosts.empty() && settings_.lease_s > 0)
    words.insert(words.end(), {"--lease", std::to_string(settings_.lease_s)});
  restarts_ = true;
  return start_process(command_line_of(settings_, std::move(words)), -1, &command_);
}

// A batch script may have started the job and then become this process.
void StartedJob::adopt() {
  restarts_ = false;
  for (const int pid : started_here(settings_.common.directory, settings_.job)) claim(pid);
}

bool StartedJob::command_ended(int* wait_status) {
  if (command_ > 0 && ::waitpid(command_, wait_status, WNOHANG) == command_) {
    command_ = -1;
    return true;
  }
  return false;
}

bool StartedJob::signal(int signal, bool by_terminal) const {
  const std::vector<int> heads =
      command_ > 0 ? std::vector<int>{command_} : heads_here(settings_.common.directory, settings_.job);
  for (const int pid : heads)
    if (!by_terminal || ::getpgid(pid) != ::getpgrp()) ::kill(pid, signal);
  return !heads.empty();
}

bool StartedJob::has_head() const {
  return command_ > 0 || !heads_here(settings_.common.directory, settings_.job).empty();
}

void StartedJob::reap_orphans(pid_t but) const {
  siginfo_t ended{};
  while (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0 &&
         ended.si_pid != command_ && ended.si_pid != but) {
    ::waitpid(ended.si_pid, nullptr, WNOHANG);
    ended = {};
  }
}

void StartedJob::await_last_word(const std::string& why, int* wait_status) {
  tell_members(why);
  for (const std::int64_t until = monotonic_ns() + kLastWordNs; command_ > 0 && monotonic_ns() < until;)
    if (!command_ended(wait_status)) ::usleep(kStepUs);
}

void StartedJob::tell_members(const std::string& why) const {
  Lives lives;
  if (look_who_lives(settings_.common.directory, settings_.job, &lives).ok() && lives.any_alive())
    publish_end(settings_, lives.epoch, why);
}

void StartedJob::ask_to_end(const std::string& why) {
  tell_members(why);
  // A restart takes its processes with it. Commands of shadowib are spared, so this is the only one that is told.
  if (command_ > 0) ::kill(command_, SIGKILL);
  tell_ns_ = monotonic_ns() + kFirstWordNs;
}

// All that runs below this process, and below what an earlier supervisor has started.
std::vector<pid_t> StartedJob::kill_processes() {
  int wait_status = 0;
  (void)command_ended(&wait_status);
  reap_orphans(0);
  const std::vector<int> started = started_here(settings_.common.directory, settings_.job);
  for (const int pid : started) claim(pid);
  std::vector<pid_t> left = kill_descendants(::getpid());
  for (const int pid : started) {
    for (const pid_t below : kill_descendants(pid)) left.push_back(below);
    ::kill(pid, SIGKILL);
    left.push_back(pid);
  }
  if (command_ > 0 && restarts_) left.push_back(command_);
  return left;
}

bool StartedJob::all_ended() {
  const std::vector<pid_t> left = kill_processes();
  Lives lives;
  const Status status = look_who_lives(settings_.common.directory, settings_.job, &lives);
  if (status.ok() && !lives.any_alive() && lives.other.empty() && left.empty()) return true;
  ::usleep(kStepUs);
  if (monotonic_ns() < tell_ns_) return false;
  tell_ns_ = monotonic_ns() + kNextWordNs;
  if (!status.ok()) tell(settings_, status.text());
  for (const MemberLife& member : lives.members)
    if (member.state == MemberLife::kAlive)
      tell(settings_, "waiting for the end of " + describe_life(member) + describe_standing(member));
  if (!lives.any_alive() && !left.empty())
    tell(settings_, "waiting for the end of " + describe_process(left.front()));
  if (!lives.other.empty()) tell(settings_, "waiting for the command that holds " + lives.other);
  return false;
}

}  // namespace shadowib::cli
