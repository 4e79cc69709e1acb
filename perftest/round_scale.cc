// The messages of a whole checkpoint and of the restart after it, of many members: what they ask of an exchange, and
// nothing else. round_scale URI DIRECTORY MEMBERS QUEUE_PAIRS; prints counts and seconds as JSON.
//
// Each member is a process, as it is in a job; one process is the command. What each asks is what hooks/agent and
// hooks/command ask, in their order.
// The acceptance line `many` compares the operations counted here with those that real members log.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "hooks/job/collection.h"
#include "hooks/job/protocol.h"
#include "perftest/counted_calls.h"
#include "perftest/processes.h"
#include "shadowib/base/descriptors.h"
#include "shadowib/base/lock.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/remove_below.h"

namespace {

using namespace shadowib;

constexpr char kEpoch[] = "g0-scale", kNextEpoch[] = "g1-scale", kJob[] = "scale";
constexpr int kTimeoutMs = 600000, kSliceMs = 200, kSeldomMs = 2000;
constexpr std::int64_t kRoundNs = 20000, kLongestPauseNs = 250000000, kOthersCheckNs = 10000000;
constexpr std::size_t kTableBytes = 600, kFilesBytes = 3000, kRowBytes = 24;

struct Scale {
  std::string uri, directory;
  int members, queue_pairs;
};

struct Tally {
  std::atomic<std::uint64_t> calls, sleeps, operations, cpu_ns;
};

std::uint64_t process_cpu_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000000 + static_cast<std::uint64_t>(now.tv_nsec);
}

enum Part { kCheckpoint, kRestart, kParts };
constexpr const char* kPartNames[] = {"checkpoint", "restart"};

// What all processes see.
struct Shared {
  pthread_barrier_t together;
  std::int64_t begins[kParts], ends[kParts];
  Tally members[kParts], command[kParts];
  std::atomic<std::uint64_t> round_operations;
};

// What one process does in one part. `exchange` may be opened anew meanwhile.
class Counted {
 public:
  Counted(Tally& tally, const std::unique_ptr<Exchange>& exchange, std::uint64_t operations)
      : tally_(tally), exchange_(exchange), operations_(operations) {}
  ~Counted() {
    tally_.calls += call_counts().calls - calls_.calls;
    tally_.sleeps += call_counts().sleeps - calls_.sleeps;
    tally_.operations += exchange_->operations() - operations_;
    tally_.cpu_ns += process_cpu_ns() - cpu_ns_;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  Tally& tally_;
  const std::unique_ptr<Exchange>& exchange_;
  const CallCounts calls_ = call_counts();
  const std::uint64_t operations_, cpu_ns_ = process_cpu_ns();
};

std::string lock_of_command(const Scale& scale) { return alive_path(scale.directory, kJob, kEpoch, "ckpt1"); }
std::string of_round(const std::string& rest) { return checkpoint_key(kEpoch, 1, rest); }

// One member, as hooks/agent/round*.cc, agent.cc and restarted.cc are.
class Member {
 public:
  Member(const Scale& scale, int index)
      : scale_(scale), index_(index), me_(std::to_string(index)), lock_(lock_of_command(scale)) {}

  void open(bool create) { must("open", Exchange::open(scale_.uri, create, &exchange_)); }
  const std::unique_ptr<Exchange>& exchange() { return exchange_; }

  // Has joined, and sleeps for requests, as an agent does.
  void idle() {
    must("claim", exchange_->claim(key("member/" + me_), std::string(200, 'm')));
    (void)is_asked(0);
  }

  void checkpoint() {
    while (!is_asked(kTimeoutMs)) {
    }
    const std::uint64_t before = exchange_->operations();
    publish_alike(of_round("phase/" + me_), encode_fields({{"phase", "10"}}));
    for (const char* name : {"10", "20", "30"}) barrier(name);
    settle();
    Exchange::Look look{.prefix = of_round(""), .keys = {of_round("again/0")}};
    barrier("40.0", &look);
    token_ = look.token;
    for (const char* name : {"50", "60"}) barrier(name);
    wait_for("go",
             {{of_round("files/" + me_), std::string(kFilesBytes, 'f'), true},
              {of_round("fds/" + me_), std::string(kTableBytes, 'd')}},
             of_round("memory/" + me_));
    publish(of_round("saved/" + me_), std::string(400, 's'));
    wait_for("outcome");
    round_operations_ = exchange_->operations() - before - repeats_;  // as a member logs them
    publish_alike(of_round("done/" + me_), encode_fields({{"committed", "1"}}));
  }
  // Of the round alone, without looks that were repeated while it settled.
  std::uint64_t round_operations() const { return round_operations_; }

  void restart() {
    open(true);
    std::vector<std::string> values;
    std::vector<bool> found;
    must("lookup", exchange_->lookup({next("control/checkpoint"), next("control/status")}, &values, &found));
    publish(next("member/" + me_), std::string(200, 'm'));
    // A device of ib2tcp, its context and what peers need.
    must("claim", exchange_->claim(next("ib2tcp/lid/" + std::to_string(index_ + 1)), "claimed"));
    publish(next("ib2tcp/ep/" + std::to_string(index_ + 1)), std::string(100, 'e'));
    must("claim", exchange_->claim(next("lid/" + std::to_string(index_ + 1)), me_));
    publish_all(
        {{next("address/lid" + std::to_string(index_ + 1) + "/" + me_), "", true},
         {next("address/gid" + std::to_string(index_ + 1) + "/" + me_), "", true},
         {next("rebuild/" + me_), std::string((static_cast<std::size_t>(scale_.queue_pairs) + 8) * 12, 'i')}});
    pass("published");
    list(next("address/lid" + std::to_string(index_ + 1)));
    if (scale_.queue_pairs > 0) {
      get(next("rebuild/" + std::to_string(peer())));
      list(next("address/lid" + std::to_string(peer() + 1)));
      get(next("ib2tcp/ep/" + std::to_string(peer() + 1)));
    }
    pass("connected");
    pass("b/go");
    publish_alike(next("restart/done/" + me_), encode_fields({}));
  }

 private:
  std::string key(const std::string& rest) const { return std::string(kEpoch) + "/" + rest; }
  std::string next(const std::string& rest) const { return std::string(kNextEpoch) + "/" + rest; }
  int peer() const { return index_ ^ 1; }

  std::string get(const std::string& name) {
    std::string value;
    bool found = false;
    must("get", exchange_->get(name, &value, &found));
    return value;
  }
  void publish(const std::string& name, const std::string& value) {
    must("publish", exchange_->publish(name, value));
  }
  void publish_alike(const std::string& name, const std::string& value) {
    must("publish", exchange_->publish_alike(name, value));
  }
  void publish_all(const std::vector<Exchange::Value>& values) { must("publish", exchange_->publish_all(values)); }
  void list(const std::string& name) {
    std::vector<std::string> names;
    must("list", exchange_->list(name, &names));
  }

  void check_others() {
    if (!get(of_round("abort")).empty() || !is_alive(lock_)) give_up("wait", Status(Code::kAborted, 0, "given up"));
  }
  int slice_ms() const { return index_ == 0 ? kSliceMs : kSeldomMs; }
  bool is_asked(int timeout_ms) {
    std::vector<std::string> values;
    std::vector<bool> found;
    const Status status = exchange_->watch_and_lookup(
        key("control"), &control_, timeout_ms,
        {key("control/abort"), key("control/checkpoint"), key("control/status")}, &values, &found);
    if (!status.ok() && status.code() != Code::kTimeout) give_up("watch", status);
    return found[1];
  }
  void barrier(const std::string& name, Exchange::Look* look = nullptr) {
    for (;;) {
      const Status status = exchange_->barrier_beside({}, of_round("b/" + name), me_, scale_.members, slice_ms(),
                                                      of_round("abort"), look);
      if (status.ok()) return;
      if (status.code() != Code::kTimeout) give_up("barrier", status);
      check_others();
    }
  }
  void wait_for(const char* name, std::vector<Exchange::Value> first = {}, const std::string& beside = "") {
    std::vector<std::string> keys{of_round(name), of_round("abort")}, values;
    if (!beside.empty()) keys.push_back(beside);
    for (std::vector<bool> found;;) {
      const Status status =
          exchange_->watch_and_lookup(of_round(""), &token_, slice_ms(), keys, &values, &found, first);
      first.clear();
      if (!status.ok() && status.code() != Code::kTimeout) give_up("watch", status);
      if (found[0]) return;
      if (found[1] || !status.ok()) check_others();
    }
  }
  void pass(const char* name) {
    must("barrier", exchange_->barrier(next(std::string("restart/") + name), me_, scale_.members, kTimeoutMs,
                                       next("restart/abort")));
  }

  // shadowib/cr/settle.cc, where no request is outstanding. Until all have settled it looks at its queues again.
  void settle() {
    std::vector<Exchange::Value> due{{of_round("s/0/counts/" + me_),
                                      std::string(static_cast<std::size_t>(scale_.queue_pairs) * kRowBytes, 'c'),
                                      scale_.queue_pairs == 0}};
    const std::int64_t began = monotonic_ns();
    std::int64_t look = began + kOthersCheckNs;
    for (;;) {
      const std::int64_t now = monotonic_ns(), due_ns = scale_.queue_pairs == 0 ? kLongestPauseNs : 3 * (now - began);
      const std::int64_t pause_ns = std::clamp(due_ns, kRoundNs, kLongestPauseNs);
      if (now >= look) {
        look = now + kLongestPauseNs;
        std::vector<std::string> values;
        std::vector<bool> found;
        must("lookup", exchange_->lookup({of_round("abort"), of_round("again/0")}, &values, &found));
        ++repeats_;
      }
      const Status status =
          exchange_->barrier_beside(due, of_round("s/0/settled"), me_, scale_.members,
                                    static_cast<int>(pause_ns / 1000000), of_round("abort"), nullptr);
      due.clear();
      if (status.ok()) return;
      if (status.code() != Code::kTimeout) give_up("settled", status);
      ++repeats_;
      if (pause_ns >= 1000000) continue;
      const timespec pause{0, pause_ns};
      ++call_counts().calls, ++call_counts().sleeps;
      ::nanosleep(&pause, nullptr);
    }
  }

  const Scale& scale_;
  const int index_;
  const std::string me_, lock_;
  std::unique_ptr<Exchange> exchange_;
  std::uint64_t control_ = 0, token_ = 0, repeats_ = 0, round_operations_ = 0;
};

// hooks/command/coordinator.cc.
class Command {
 public:
  explicit Command(const Scale& scale) : scale_(scale) {
    must("open", Exchange::open(scale.uri, true, &exchange_));
    lock_ = hold_alive_lock(lock_of_command(scale));
    if (lock_ < 0) give_up("lock", Status::of(Code::kIo, errno, "no lock"));
  }
  ~Command() { close_owned_descriptor(lock_); }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  const std::unique_ptr<Exchange>& exchange() { return exchange_; }

  void checkpoint() {
    std::string members;
    for (int m = 0; m < scale_.members; ++m) {
      members += (m == 0 ? "" : ",") + std::to_string(m);
      members_.push_back(static_cast<std::uint32_t>(m));
    }
    publish(std::string(kEpoch) + "/control/checkpoint", encode_fields({{"n", "1"}, {"members", members}}));
    collect("fds");
    publish(of_round("go"), encode_fields({}));
    collect("saved");
    collect("files");
    publish(of_round("outcome"), encode_fields({{"committed", "x"}}));
    collect("done");
  }
  void forget() { must("remove", remove_below(scale_.uri, of_round(""))); }

 private:
  void publish(const std::string& key, const std::string& value) { must("publish", exchange_->publish(key, value)); }

  void collect(const char* what) {
    Collection published(*exchange_, of_round(what), members_);
    for (;;) {
      must("look", published.look());
      if (published.complete()) return;
      get(of_round("abort"));
      must("wait", published.wait(50));
    }
  }
  void get(const std::string& key) {
    std::string value;
    bool found = false;
    must("get", exchange_->get(key, &value, &found));
  }

  const Scale& scale_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<std::uint32_t> members_;
  int lock_ = -1;
};

class Run {
 public:
  explicit Run(const Scale& scale) : scale_(scale) {
    init_barrier(&shared_->together, static_cast<unsigned>(scale.members) + 1);
  }

  // False: a process has failed, and said why.
  bool go() {
    Processes processes;
    for (int m = 0; m < scale_.members; ++m) processes.start([&] { member(m); });
    processes.start([&] { command(); });
    return processes.wait();
  }

  void print() const {
    std::printf("{\"members\": %d, \"queue_pairs\": %d", scale_.members, scale_.queue_pairs);
    for (int part = 0; part < kParts; ++part) {
      const auto each = [&](const std::atomic<std::uint64_t>& sum) {
        return static_cast<double>(sum.load()) / scale_.members;
      };
      const Tally &members = shared_->members[part], &command = shared_->command[part];
      std::printf(
          ", \"%s\": {\"seconds\": %.4f, \"cpu_s\": %.4f, \"calls\": %.2f, \"sleeps\": %.2f, \"operations\": %.2f, "
          "\"command_calls\": %.2f, \"command_operations\": %.2f}",
          kPartNames[part], static_cast<double>(shared_->ends[part] - shared_->begins[part]) / 1e9,
          static_cast<double>(members.cpu_ns + command.cpu_ns) / 1e9, each(members.calls), each(members.sleeps),
          each(members.operations), each(command.calls), each(command.operations));
    }
    std::printf(", \"round_operations\": %.2f}\n",
                static_cast<double>(shared_->round_operations.load()) / scale_.members);
  }

 private:
  void meet() { ::pthread_barrier_wait(&shared_->together); }

  void member(int m) {
    Member member(scale_, m);
    member.open(true);
    member.idle();
    meet();
    {
      const Counted counted(shared_->members[kCheckpoint], member.exchange(), member.exchange()->operations());
      member.checkpoint();
    }
    shared_->round_operations += member.round_operations();
    meet();
    {
      const Counted counted(shared_->members[kRestart], member.exchange(), 0);
      member.restart();
    }
    meet();
  }

  void command() {
    Command command(scale_);
    meet();
    shared_->begins[kCheckpoint] = monotonic_ns();
    {
      const Counted counted(shared_->command[kCheckpoint], command.exchange(), command.exchange()->operations());
      command.checkpoint();
    }
    meet();
    shared_->ends[kCheckpoint] = shared_->begins[kRestart] = monotonic_ns();
    meet();
    shared_->ends[kRestart] = monotonic_ns();
    command.forget();
  }

  const Scale scale_;
  Shared* const shared_ = make_shared<Shared>();
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: round_scale URI DIRECTORY MEMBERS QUEUE_PAIRS\n");
    return 2;
  }
  const Scale scale{argv[1], argv[2], std::atoi(argv[3]), std::atoi(argv[4])};
  if (scale.members < 2 || scale.members % 2 != 0) {
    std::fprintf(stderr, "round_scale: an even number of members\n");
    return 2;
  }
  Run run(scale);
  if (!run.go()) return 1;
  for (const char* epoch : {kEpoch, kNextEpoch}) must("remove", remove_below(scale.uri, epoch));
  run.print();
}
