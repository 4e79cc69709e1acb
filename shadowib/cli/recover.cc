#include "shadowib/cli/recover.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "hooks/command/recovery.h"
#include "hooks/job/protocol.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/forwarded_signals.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/doctor_set.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/host_shares.h"
#include "shadowib/cli/inherited_signals.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace {

constexpr int kMeetingStepMs = 100;  // between looks whether another part has given up
constexpr int kWatchMs = 50, kWaitMs = 500, kEarlierEndsMs = 2000;
constexpr std::size_t kMostReport = 1 << 20;

std::string seconds(double s) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.0f s", s);
  return text;
}

// A cluster's processes, as the command that restarts its set.
struct Started {
  std::string cluster;
  pid_t pid = -1;
  int output = -1;  // of --json
  std::string said;
  int code = 0;
};

class Recover {
 public:
  Recover(const Common& common, const RecoverRequest& request, std::string job, std::string exchange)
      : common_(common),
        request_(request),
        job_(std::move(job)),
        exchange_(std::move(exchange)),
        recovery_(std::make_unique<Recovery>(options(request.clusters))) {}
  ~Recover() {
    if (share_lock_ >= 0) close_owned_descriptor(share_lock_);
    if (signals_ >= 0) ::close(signals_);
  }
  Recover(const Recover&) = delete;
  Recover& operator=(const Recover&) = delete;

  int run() {
    if (const Status s = recovery_->prepare(); !s.ok()) return failed(s);
    for (;;) {
      tell_line();
      if (const Status s = recovery_->begin(); !s.ok()) return failed(s);
      Status status = note_holder();
      // Who reads what it says may end, as at the end of a terminal. Its processes would end with it.
      ::signal(SIGPIPE, SIG_IGN);
      catch_signals();
      for (const RecoveredCluster& cluster : recovery_->clusters())
        if (status.ok()) status = start(cluster);
      if (!status.ok()) give_up(status.text());
      const int code = await();
      if (!status.ok()) return failed(status);
      if (!stands_.ok()) return failed(stands_);
      if (further_ == nullptr) return report(code);
      recovery_ = std::move(further_);
    }
  }

 private:
  RecoveryOptions options(std::vector<std::string> clusters) const {
    RecoveryOptions options;
    options.directory = common_.directory;
    options.job = job_;
    options.exchange = exchange_;
    options.clusters = std::move(clusters);
    options.fenced = request_.fenced;
    options.timeout_ms = request_.timeout_s * 1000;
    options.check = [this](const std::vector<RecoveredCluster>& clusters) -> Status {
      for (const RecoveredCluster& cluster : clusters) {
        SetManifest manifest;
        SHADOWIB_TRY(verify_with_progress(cluster.manifest.path, &manifest, {}, VerifyDepth::kForRestart));
        if (!request_.hosts.empty()) continue;  // each of them looks itself
        SHADOWIB_TRY(check_set_in_recovery(manifest, request_.backend, request_.verbs_library, cluster.lives));
      }
      return {};
    };
    return options;
  }

  int failed(const Status& status) {
    HistoryEvent event("recovery_failed");
    event.add("clusters", names()).add("code", static_cast<int>(status.code())).add("error", status.text());
    if (status.code() != Code::kBusy && status.code() != Code::kNotFound)
      (void)append_history(common_.directory, job_, event).ok();  // the error is what counts
    return fail(common_, status);
  }

  Json names() const {
    Json names = Json::array();
    for (const RecoveredCluster& cluster : recovery_->clusters()) names.push_back(cluster.name);
    return names;
  }

  Json line() const {
    Json line = Json::array();
    for (const ViewedCluster& cluster : recovery_->federation().clusters) {
      const auto& all = recovery_->clusters();
      const auto back = std::find_if(all.begin(), all.end(), [&](const auto& b) { return b.index == cluster.index; });
      Json json{{"name", cluster.name}, {"stays", back == all.end()}};
      if (back != all.end()) {
        json["sn"] = back->sn;
        json["set"] = name_of(back->manifest);
        json["lost_s"] = back->lost_s;
      }
      line.push_back(json);
    }
    return line;
  }

  void tell_line() const {
    for (const RecoveredCluster& cluster : recovery_->clusters())
      std::fprintf(stderr, "shadowib: cluster %s goes back to CLC %u (%s); %s are lost\n", cluster.name.c_str(),
                   cluster.sn, name_of(cluster.manifest).c_str(), seconds(cluster.lost_s).c_str());
  }

  // A signal to this command is one to the processes.
  Status note_holder() {
    std::uint32_t lowest = ~0u;
    for (const RecoveredCluster& cluster : recovery_->clusters())
      for (const SetMember& member : cluster.manifest.members) lowest = std::min(lowest, member.index);
    const std::string path =
        alive_path(common_.directory, job_, recovery_->epoch(), "share" + std::to_string(lowest));
    if (share_lock_ >= 0) close_owned_descriptor(share_lock_);
    // The command of an earlier recovery, whose processes have just been ended, is about to end as well.
    const Deadline deadline = Deadline::in_ms(kEarlierEndsMs);
    while ((share_lock_ = hold_alive_lock(path)) < 0 && errno == EAGAIN && !deadline.has_passed()) ::usleep(20000);
    // Another one is still the parent of processes of that number: then signals to it are not for these processes.
    if (share_lock_ >= 0) return note_lock_holder(share_lock_, path);
    std::fprintf(stderr, "shadowib: cannot lock %s: %s; a signal to member %u is to be sent to pid %d\n",
                 path.c_str(), std::strerror(errno), lowest, static_cast<int>(::getpid()));
    return {};
  }

  void catch_signals() {
    if (signals_ >= 0) return;
    sigset_t forwarded = forwarded_signals();
    ::sigaddset(&forwarded, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &forwarded, nullptr);
    signals_ = ::signalfd(-1, &forwarded, SFD_CLOEXEC | SFD_NONBLOCK);
  }

  Status start(const RecoveredCluster& cluster) {
    std::error_code error;
    const RecoveryPart part{recovery_->number(), static_cast<std::uint32_t>(recovery_->members()),
                            recovery_->generation()};
    std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe", error).string(), "restart",
                                   cluster.manifest.path, "--in-recovery", encode_part(part)};
    words.insert(words.end(), request_.words.begin(), request_.words.end());
    if (!request_.hosts.empty()) {
      const auto slots = next_slots(request_.hosts, cluster.manifest.members.size(), &slots_used_);
      words.insert(words.end(), {"--hosts", command_line::hosts_text(slots)});
    }
    if (common_.json) words.emplace_back("--json");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int pipe[2] = {-1, -1};
    if (common_.json && ::pipe2(pipe, O_CLOEXEC) != 0)
      return Status::of(Code::kIo, errno, "cannot make a pipe: %s", std::strerror(errno));
    std::fflush(nullptr);
    const pid_t own = ::getpid(), pid = ::fork();
    if (pid == 0) {
      give_back_inherited_signals();
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != own) ::_exit(kRunFailed);
      if (common_.json) ::dup2(pipe[1], STDOUT_FILENO);
      ::execv(arguments[0], arguments.data());
      ::_exit(kRunNotFound);
    }
    const int why = errno;
    if (pipe[1] >= 0) ::close(pipe[1]);
    if (pid < 0) {
      if (pipe[0] >= 0) ::close(pipe[0]);
      return Status::of(Code::kIo, why, "cannot fork: %s", std::strerror(why));
    }
    started_.push_back({cluster.name, pid, pipe[0], "", 0});
    ++living_;
    return {};
  }

  void give_up(const std::string& why) {
    std::unique_ptr<Exchange> exchange;
    std::string uri = exchange_of(common_, job_);
    if (!settle_exchange(job_paths(common_.directory, job_).password, &uri).ok()) return;
    if (!Exchange::open(uri, false, &exchange).ok()) return;
    (void)exchange->claim(restart_prefix(recovery_->epoch(), recovery_->number()) + "abort", why).ok();
  }

  // Until all have ended.
  int await() {
    int code = 0;
    while (living_ > 0) {
      std::vector<pollfd> polls{{signals_, POLLIN, 0}};
      for (const Started& s : started_) polls.push_back({s.output, POLLIN, 0});
      ::poll(polls.data(), polls.size(), all_run_ ? kWaitMs : kWatchMs);
      forward_signals();
      for (std::size_t i = 0; i < started_.size(); ++i)
        if (polls[i + 1].revents != 0) read_output(&started_[i]);
      reap(&code);
      if (!all_run_)
        look();
      else if (living_ > 0 && request_.patience_s > 0 && !all_is_sent_again_)
        look_at_gates();
      if (further_ != nullptr || !stands_.ok()) {
        end_processes();
        return code;
      }
    }
    for (Started& s : started_)
      while (s.output >= 0) read_output(&s);
    return code;
  }

  void look() {
    if (const Status s = recovery_->watch(&all_run_); !s.ok())
      std::fprintf(stderr, "shadowib: looking whether all members run: %s\n", s.text());
    if (!all_run_) return;
    const std::int64_t now = monotonic_ns();
    double lost_s = 0;
    for (const RecoveredCluster& cluster : recovery_->clusters()) lost_s += cluster.lost_s;
    note_event(common_.directory, job_,
               HistoryEvent("recovery")
                   .add("number", recovery_->number())
                   .add("line", line())
                   .add("clusters", names())
                   .add("members", recovery_->members())
                   .add("generation", recovery_->generation())
                   .add("lost_s", lost_s)
                   .add("ready_ms", milliseconds(now - began_ns_)));
    std::fprintf(stderr, "shadowib: recovery %llu: %zu processes run again after %s\n",
                 static_cast<unsigned long long>(recovery_->number()),
                 recovery_->members() - recovery_->died().size(), human_time(now - began_ns_).c_str());
    for (const std::uint32_t member : recovery_->died())
      std::fprintf(stderr,
                   "shadowib: member %u ended before it ran: its cluster has failed again; `shadowib restart "
                   "--job %s` takes it back\n",
                   member, job_.c_str());
  }

  // The cluster may do otherwise than before, and wait for an answer that waits for what it does not take. Whose
  // messages it does not take goes back as well, to before they were completed.
  void look_at_gates() {
    std::map<std::uint32_t, std::string> left;
    if (!recovery_->read_gates(&left).ok()) return;
    all_is_sent_again_ = left.empty();
    if (all_is_sent_again_) return;
    const std::int64_t now = monotonic_ns();
    if (left != left_) {
      left_ = std::move(left);
      left_since_ns_ = now;
    } else if (static_cast<double>(now - left_since_ns_) / 1e9 >= request_.patience_s) {
      left_since_ns_ = now;
      take_further_back();
    }
  }

  void take_further_back() {
    std::set<std::string> clusters, others;
    for (const RecoveredCluster& cluster : recovery_->clusters()) clusters.insert(cluster.name);
    for (const auto& [member, left] : left_)
      if (!clusters.contains(recovery_->cluster_of(member))) others.insert(recovery_->cluster_of(member));
    const std::uint32_t first = left_.begin()->first;
    const std::string time = seconds(request_.patience_s);
    if (others.empty()) {
      stands_ =
          Status::of(Code::kTimeout, 0,
                     "member %u has still to send messages again, of which none has run for %.20s, and its "
                     "cluster has gone back as well; `shadowib restart %.64s` starts the newest set of the whole "
                     "job, or give a longer --patience",
                     first, time.c_str(), job_.c_str());
      return;
    }
    std::string names;
    for (const std::string& name : others) names += (names.empty() ? "" : ", ") + name;
    std::fprintf(stderr,
                 "shadowib: member %u has still to send messages again, of which none has run for %s: %s %s back, "
                 "too\n",
                 first, time.c_str(), names.c_str(), others.size() == 1 ? "goes" : "go");
    clusters.merge(others);
    auto further = std::make_unique<Recovery>(options({clusters.begin(), clusters.end()}));
    const Status status = further->prepare();
    if (status.ok())
      further_ = std::move(further);
    else if (status.code() == Code::kBusy)  // the patience begins anew
      std::fprintf(stderr, "shadowib: %s\n", status.text());
    else
      stands_ = status;
  }

  void end_processes() {
    for (Started& s : started_) {
      if (s.pid > 0) ::kill(s.pid, SIGKILL), ::waitpid(s.pid, nullptr, 0);
      if (s.output >= 0) ::close(s.output);
    }
    started_.clear();
    left_.clear();
    living_ = slots_used_ = 0;
    all_run_ = all_is_sent_again_ = false;
    began_ns_ = monotonic_ns();
  }

  // A terminal tells the commands of the clusters as well.
  void forward_signals() {
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info)))
      for (const Started& s : started_)
        if (info.ssi_signo != SIGCHLD && info.ssi_code != SI_KERNEL && s.pid > 0)
          ::kill(s.pid, static_cast<int>(info.ssi_signo));
  }

  void read_output(Started* from) {
    char buffer[4096];
    const ssize_t n = ::read(from->output, buffer, sizeof(buffer));
    if (n > 0) {  // programs write there, too; their report is the end
      [[maybe_unused]] const ssize_t passed = ::write(STDERR_FILENO, buffer, static_cast<std::size_t>(n));
      from->said.append(buffer, static_cast<std::size_t>(n));
      if (from->said.size() > 2 * kMostReport) from->said.erase(0, from->said.size() - kMostReport);
    }
    if (n > 0 || (n < 0 && errno == EINTR)) return;
    ::close(from->output);
    from->output = -1;
  }

  void reap(int* code) {
    for (Started& s : started_) {
      int wait_status = 0;
      if (s.pid <= 0 || ::waitpid(s.pid, &wait_status, WNOHANG) != s.pid) continue;
      s.pid = -1;
      --living_;
      s.code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : kRunFailed;
      if (s.code == 0) continue;
      if (*code == 0) *code = s.code;
      if (!all_run_) give_up("the command that was to restart cluster " + s.cluster + " has failed");
    }
  }

  int report(int code) const {
    if (!common_.json) return code;
    Json clusters = Json::array(), died = Json::array();
    for (const std::uint32_t member : recovery_->died()) died.push_back(member);
    for (const Started& s : started_) {
      Json said;
      Json cluster{{"name", s.cluster}, {"exit_code", s.code}};
      if (Json::parse(s.said, &said)) cluster["restart"] = said;
      clusters.push_back(cluster);
    }
    print_json({{"job", job_},
                {"recovery", recovery_->number()},
                {"ok", code == 0},
                {"reached", all_run_},
                {"died", died},
                {"line", line()},
                {"clusters", clusters}});
    return code;
  }

  const Common& common_;
  const RecoverRequest& request_;
  const std::string job_, exchange_;
  std::unique_ptr<Recovery> recovery_;
  std::unique_ptr<Recovery> further_;  // prepared: more clusters go back
  std::int64_t began_ns_ = monotonic_ns();
  std::vector<Started> started_;
  std::size_t living_ = 0, slots_used_ = 0;
  bool all_run_ = false;
  std::map<std::uint32_t, std::string> left_;  // Recovery::read_gates()
  std::int64_t left_since_ns_ = 0;
  bool all_is_sent_again_ = false;
  Status stands_;  // why it goes no further
  int share_lock_ = -1, signals_ = -1;
};

}  // namespace

std::string encode_part(const RecoveryPart& part) {
  return std::to_string(part.number) + ":" + std::to_string(part.members) + ":" + std::to_string(part.generation);
}

Status decode_part(const std::string& text, RecoveryPart* part) {
  unsigned long long number = 0;
  unsigned members = 0, generation = 0;
  int used = 0;
  if (std::sscanf(text.c_str(), "%10llu:%7u:%9u%n", &number, &members, &generation, &used) != 3 ||
      used != static_cast<int>(text.size()) || number == 0 || members == 0 || generation == 0)
    return Status::of(Code::kUsage, EINVAL, "--in-recovery %.60s: `restart --job` gives it", text.c_str());
  *part = {number, members, generation};
  return {};
}

Status meet_other_parts(Exchange& exchange, const std::string& epoch, const RecoveryPart& part,
                        const std::set<std::uint32_t>& members) {
  const std::string prefix = restart_prefix(epoch, part.number), ready = prefix + "ready";
  std::vector<Exchange::Value> own;
  for (const std::uint32_t member : members)
    own.push_back({ready + "/" + std::to_string(member), encode_fields({}), false});
  SHADOWIB_TRY(exchange.publish_all(own));
  for (std::uint64_t token = 0;;) {
    std::vector<std::string> all;
    std::string why;
    bool aborted = false;
    SHADOWIB_TRY(exchange.list(ready, &all));
    if (all.size() >= part.members) return {};
    SHADOWIB_TRY(exchange.get(prefix + "abort", &why, &aborted));
    if (aborted) return Status::of(Code::kAborted, 0, "the recovery was given up: %.300s", why.c_str());
    const Status status = exchange.watch(ready, &token, kMeetingStepMs, -1);
    if (!status.ok() && status.code() != Code::kTimeout) return status;
  }
}

int recover(const Common& common, const RecoverRequest& request) {
  std::string job;
  if (const Status s = require_directory(common); !s.ok()) return fail(common, s);
  if (const Status s = choose_job(common.directory, request.job, &job); !s.ok()) return fail(common, s);
  std::string exchange = exchange_of(common, job);
  if (const Status s = settle_exchange(job_paths(common.directory, job).password, &exchange); !s.ok())
    return fail(common, s);
  return Recover(common, request, job, exchange).run();
}

}  // namespace shadowib::cli
