#include "shadowib/cli/watch.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <sstream>

#include "hooks/imager/checkpoint_set.h"
#include "hooks/job/members.h"
#include "hooks/job/phase.h"
#include "shadowib/base/lock.h"
#include "shadowib/cli/exchange_place.h"
#include "shadowib/cli/history.h"
#include "shadowib/cli/jobs.h"
#include "shadowib/cli/output.h"
#include "shadowib/cli/sets.h"

namespace shadowib::cli {
namespace {

volatile sig_atomic_t g_interrupted = 0;

// Requests that a member has posted and received so far.
struct Counters {
  double sends = 0, receives = 0;
  std::int64_t at_ns = 0;
};

struct Rates {
  double sends = 0, receives = 0;  // a second
};

struct WatchedMember {
  MemberStatus status;
  Json state;
  std::size_t queue_pairs = 0;
  std::optional<Rates> rates;  // none at the first look, and while it does not answer
};

struct LastSet {
  std::string name;
  double age_s = -1;
  std::uint64_t bytes = 0;
  double stopped_ms = -1;  // what it cost; -1: not known
};

struct Look {
  std::string job, epoch;
  bool alive = false, in_use = false, checkpoint = false;
  std::vector<WatchedMember> members;
  LastSet set;
};

class Watch {
 public:
  Watch(const Common& common, const std::string& job, double timeout_s)
      : common_(common), job_(job), timeout_ms_(static_cast<int>(timeout_s * 1000)) {}

  Status look(Look* now) {
    std::vector<MemberStatus> members;
    std::string exchange = exchange_of(common_, job_), who;
    *now = {};
    now->job = job_;
    SHADOWIB_TRY(settle_exchange(job_paths(common_.directory, job_).password, &exchange));
    SHADOWIB_TRY(query_status(common_.directory, job_, exchange, timeout_ms_, &members, &now->epoch));
    now->alive = job_alive(common_.directory, job_, &who);
    now->in_use = now->alive || job_in_use(common_.directory, job_, &who);
    now->checkpoint = checkpoint_running(common_.directory, job_);
    for (const MemberStatus& member : members)
      if (member.alive) now->members.push_back(watched(member, now->epoch));
    look_at_set();
    now->set = set_;
    return {};
  }

 private:
  WatchedMember watched(const MemberStatus& status, const std::string& epoch) {
    WatchedMember member{status, {}, 0, {}};
    if (!Json::parse(status.json, &member.state)) return member;
    Counters now{0, 0, monotonic_ns()};
    const Json& pairs = std::as_const(member.state)["objects"].is_object()
                            ? std::as_const(std::as_const(member.state)["objects"])["queue_pairs"]
                            : member.state;
    for (const Json& qp : pairs) {
      now.sends += qp.value("sends_posted", 0.0);
      now.receives += qp.value("receives_completed", 0.0);
    }
    member.queue_pairs = pairs.size();
    const std::string key = epoch + "." + std::to_string(status.index);
    if (const auto before = counters_.find(key); before != counters_.end()) {
      const double seconds = static_cast<double>(now.at_ns - before->second.at_ns) / 1e9;
      member.rates = Rates{std::max(0.0, now.sends - before->second.sends) / seconds,
                           std::max(0.0, now.receives - before->second.receives) / seconds};
    }
    counters_[key] = now;
    return member;
  }

  // Manifest and history are read once for each new set.
  void look_at_set() {
    const std::string name = newest_set(common_.directory, job_);
    if (name != set_.name) {
      set_ = {};
      set_.name = name;
      SetManifest manifest;
      if (!name.empty() && read_manifest(sets_path(common_.directory) + "/" + name, &manifest).ok())
        for (const SetMember& member : manifest.members) set_.bytes += member.bytes;
    }
    if (name.empty()) return;
    set_.age_s = age_of_newest_set(common_.directory, job_);
    // Written just after the set is committed.
    if (set_.stopped_ms >= 0 || looked_for_cost_ > set_.age_s) return;
    looked_for_cost_ = set_.age_s;
    std::vector<PastEvent> events;
    unsigned torn = 0;
    if (!read_history(common_.directory, job_, &events, &torn).ok()) return;
    for (const PastEvent& event : events)
      if (event.name == "checkpoint" && event.text("set") == name) set_.stopped_ms = event.number("stopped_ms");
  }

  const Common& common_;
  const std::string job_;
  const int timeout_ms_;
  std::map<std::string, Counters> counters_;
  LastSet set_;
  double looked_for_cost_ = -1;
};

// --- as people see it

const char* state_of(const WatchedMember& m, bool checkpoint) {
  if (m.status.answered) return "alive";
  return checkpoint ? "in a checkpoint" : "no answer";
}

std::string describe_set(const LastSet& set) {
  if (set.name.empty()) return "none";
  std::string text = set.name + ", " + human_seconds(set.age_s) + " old, " + human_bytes(set.bytes);
  if (set.stopped_ms >= 0)
    text += ", the program stood for " + human_time(static_cast<std::int64_t>(set.stopped_ms * 1e6));
  return text;
}

std::vector<std::string> lines_of(const Look& now, std::size_t most_members) {
  const auto rate = [](const std::optional<Rates>& rates, double Rates::*part) {
    return rates ? human_count(*rates.*part) : std::string("-");
  };
  Table table({"member", "pid", "host", "command", "state", "phase", "queue pairs", "sends/s", "receives/s"});
  Rates sum;
  for (std::size_t i = 0; i < now.members.size(); ++i) {
    const WatchedMember& m = now.members[i];
    if (m.rates) sum = {sum.sends + m.rates->sends, sum.receives + m.rates->receives};
    if (i >= most_members) continue;
    table.add({std::to_string(m.status.index), std::to_string(m.status.pid), m.status.host, m.status.comm,
               state_of(m, now.checkpoint), phase_text(m.state.is_object() ? m.state.value("phase", 0) : 0).name,
               std::to_string(m.queue_pairs), rate(m.rates, &Rates::sends), rate(m.rates, &Rates::receives)});
  }
  std::vector<std::string> lines = {"job         " + now.job + ", epoch " + now.epoch + ", " +
                                        (now.alive    ? "alive"
                                         : now.in_use ? "starting: no member yet"
                                                      : "ended"),
                                    "checkpoint  " + std::string(now.checkpoint ? "under way" : "none under way"),
                                    "newest set  " + describe_set(now.set),
                                    "members     " + std::to_string(now.members.size()) + ", " +
                                        human_count(sum.sends) + " sends/s, " + human_count(sum.receives) +
                                        " receives/s",
                                    ""};
  std::istringstream rows(now.members.empty() ? "" : table.text());
  for (std::string row; std::getline(rows, row);) lines.push_back(row);
  if (now.members.size() > most_members)
    lines.push_back("... and " + std::to_string(now.members.size() - most_members) + " more");
  return lines;
}

Json json_of(const Look& now) {
  Json members = Json::array();
  for (const WatchedMember& m : now.members) {
    Json member{{"index", m.status.index},
                {"pid", m.status.pid},
                {"host", m.status.host},
                {"comm", m.status.comm},
                {"state", state_of(m, now.checkpoint)},
                {"queue_pairs", m.queue_pairs}};
    member["sends_per_s"] = m.rates ? Json(m.rates->sends) : Json();
    member["receives_per_s"] = m.rates ? Json(m.rates->receives) : Json();
    members.push_back(member);
  }
  Json set;
  if (!now.set.name.empty()) {
    set = Json{{"name", now.set.name}, {"age_s", now.set.age_s}, {"bytes", now.set.bytes}};
    set["stopped_ms"] = now.set.stopped_ms >= 0 ? Json(now.set.stopped_ms) : Json();
  }
  return {{"job", now.job}, {"epoch", now.epoch}, {"alive", now.alive}, {"checkpoint", now.checkpoint},
          {"set", set},     {"members", members}};
}

// The other screen of a terminal, which is left as it was.
class Screen {
 public:
  explicit Screen(bool terminal) : terminal_(terminal) { write("\033[?1049h\033[?25l"); }
  ~Screen() { write("\033[?25h\033[?1049l"); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void draw(const Look& now) {
    winsize size{};
    if (!terminal_ || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) size = {50, 200, 0, 0};
    constexpr std::size_t kOtherLines = 9;  // above and below the members
    const std::size_t rows = std::max<std::size_t>(size.ws_row, kOtherLines + 1);
    std::string text = terminal_ ? "\033[H" : "";
    for (const std::string& line : lines_of(now, terminal_ ? rows - kOtherLines : std::size_t(-1)))
      text += (terminal_ ? line.substr(0, size.ws_col) + "\033[K" : line) + "\n";
    text += terminal_ ? "\033[J" : "\n";
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

 private:
  void write(const char* sequence) const {
    if (!terminal_) return;
    std::fputs(sequence, stdout);
    std::fflush(stdout);
  }
  const bool terminal_;
};

void catch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { g_interrupted = 1; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

void pause_until(std::int64_t then) {
  for (std::int64_t left; g_interrupted == 0 && (left = then - monotonic_ns()) > 0;) {
    const std::int64_t step = std::min<std::int64_t>(left, 100'000'000);
    const timespec time{step / 1'000'000'000, step % 1'000'000'000};
    ::nanosleep(&time, nullptr);
  }
}

}  // namespace

int watch_job(const Common& common, const std::string& job, double every_s, double timeout_s) {
  Watch watch(common, job, timeout_s);
  Look now;
  Status status;
  catch_signals();
  {
    Screen screen(!common.json && ::isatty(STDOUT_FILENO) == 1);
    for (std::int64_t next = monotonic_ns(); g_interrupted == 0;) {
      if (status = watch.look(&now); !status.ok()) break;
      if (common.json)
        std::printf("%s\n", json_of(now).dump().c_str()), std::fflush(stdout);
      else
        screen.draw(now);
      if (!now.in_use) break;
      next = std::max(next + static_cast<std::int64_t>(every_s * 1e9), monotonic_ns());
      pause_until(next);
    }
  }
  if (!status.ok()) return fail(common, status);
  if (!now.in_use) std::fprintf(stderr, "shadowib: job %s has ended\n", job.c_str());
  return 0;
}

}  // namespace shadowib::cli
