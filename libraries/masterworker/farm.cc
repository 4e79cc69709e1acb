// The runtime of libshadowib-mw: this process is the master of a farm, or one of its workers. It becomes a worker by
// a fork in one of the master's safe points: in the start, at the entry of a farm, and in its waits; never in a
// callback (M3).
#include <shadowib/shadowib.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "libraries/masterworker/birth.h"
#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/master_link.h"
#include "libraries/masterworker/options.h"
#include "libraries/masterworker/replica.h"
#include "libraries/masterworker/runtime.h"
#include "libraries/masterworker/spin.h"
#include "libraries/masterworker/worker_link.h"

namespace shadowib::masterworker {
namespace {

volatile bool g_leave = false;  // SIGTERM: a worker ends its task and goes

// What checkpoints and forks say to each other. The hook runs in a thread of libshadowib.
struct Checkpoints {
  std::mutex forking;
  std::atomic<bool> under_way{false};
  std::atomic<int> restarts{0};
} g_checkpoints;

void checkpoint_hook(int event, void*) {
  switch (event) {
    case SHADOWIB_BEFORE_CHECKPOINT: {
      const std::lock_guard<std::mutex> lock(g_checkpoints.forking);  // a fork under way ends first
      g_checkpoints.under_way = true;
      return;
    }
    case SHADOWIB_RESTART:
      ++g_checkpoints.restarts;
      [[fallthrough]];
    default:
      g_checkpoints.under_way = false;
  }
}

constexpr std::int64_t kTickNs = MasterLink::kPingMs * std::int64_t{1'000'000};
constexpr int kStepsEachLook = 4;  // each may take as long as a callback
constexpr int kDoorMs = 60'000;    // for a farm that is just starting
constexpr int kFarewellMs = 2000;  // at the program's end, where the master may be gone first

class Farm : public Runtime {
 public:
  explicit Farm(const Settings& settings)
      : settings_(settings), asked_(static_cast<std::size_t>(settings.workers)), wanted_(asked_) {
    if (is_guest()) {
      come_from_elsewhere();
      return;
    }
    link_ = std::make_unique<MasterLink>();
    master_ = std::make_unique<Master>(*link_, static_cast<std::uint32_t>(settings.ahead));
    link_->attach(*master_);
    link_->tell(settings.verbose);
    master_->keep_updates(static_cast<std::uint64_t>(settings.keep_mib) << 20);
    hook_ = shadowib_add_hook(checkpoint_hook, nullptr);
    if (hook_ < 0) give_up("a farm cannot learn of checkpoints: shadowib_add_hook: %s", std::strerror(-hook_));
    show_door();
    take_wishes();
    bear_wanted();
  }

  void run(Callbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    if (worker_) return slave_loop();
    master_->begin(callbacks_);
    if (bear_wanted() || !drive([this] { return master_->done(); })) return slave_loop();
    master_->end();
  }

  void raw_begin(Callbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    callbacks_.generate = nullptr;
    if (worker_) return slave_loop();
    master_->begin(callbacks_);
    if (bear_wanted()) slave_loop();
  }
  void submit(Payload input) override {
    if (worker_) return;
    master_->submit(std::move(input));
    if (!drive([this] { return master_->all_handed_out(); })) slave_loop();
  }
  bool wait_for_result() override {
    if (worker_ || master_->unfinished() == 0) return false;
    const std::uint64_t before = master_->counts().checks;
    if (drive([this, before] { return master_->counts().checks != before || master_->done(); }))
      return master_->counts().checks != before;
    slave_loop();
    return false;
  }
  void raw_end() override {
    if (worker_) return;
    if (!drive([this] { return master_->done(); })) return slave_loop();
    master_->end();
  }

  void finalize() override {
    if (worker_) {
      worker_->send_leave(false, kFarewellMs);
      return;
    }
    link_->finish();
    buffer_bytes_ = link_->buffer_bytes();
    shadowib_remove_hook(hook_);
    link_.reset();
  }

  bool is_master() const override { return !worker_; }
  int rank() const override { return worker_ ? static_cast<int>(worker_->rank()) : 0; }
  int workers() const override { return static_cast<int>(worker_ ? worker_->workers() : master_->workers()); }
  int idle_workers() const override { return worker_ ? 0 : static_cast<int>(master_->idle_workers()); }
  bool up_to_date() const override { return worker_ ? true : master_->up_to_date(); }
  Round round() const override { return worker_ ? round_ : master_->checked_round(); }
  void abort_tasks() override {
    if (!worker_ && link_ && settings_.aborts) master_->abort_tasks();  // no link: after the end
  }
  void abandon() override {
    if (worker_ || !link_) return;
    master_->abandon();
    abort_tasks();
  }
  bool abort_pending() const override {
    return worker_ && (worker_->aborts().generation > generation_ || worker_->aborts().handout == handout_);
  }
  Counts counts() const override {
    Counts counts = master_->counts();
    counts.buffer_bytes = buffer_bytes_;
    counts.spins_alone = spins_alone_;
    return counts;
  }

 private:
  // The master's loop until `ready`. False: this process is a new worker now.
  template <typename Ready>
  bool drive(Ready ready) {
    std::int64_t idle_since = 0;
    bool slept = false;  // since then
    for (;;) {
      notice_restart();
      bool moved = link_->progress();
      for (int looks = 1; !moved && idle_since != 0 && looks < Spin::kLooks; ++looks) moved = link_->progress();
      const std::int64_t now = moved ? link_->looked_ns() : tick_ns();
      if (now >= next_tick_) {
        next_tick_ = now + kTickNs;
        link_->tick(now, settings_.timeout_s);
        master_->tick(now);
        take_wishes();
        if (bear_wanted()) return false;
      }
      if (const std::uint64_t deaths = master_->counts().deaths; deaths != deaths_) {
        deaths_ = deaths;
        next_tick_ = 0;  // another worker at once
      }
      if (ready()) return true;
      for (int steps = 0; steps < kStepsEachLook && master_->step(now); ++steps) {
        moved = true;
        if (ready()) return true;
      }
      if (moved) {
        if (idle_since != 0) spin_.came(slept ? now_ns() - idle_since : 0);
        idle_since = 0;
        slept = false;
        continue;
      }
      const std::int64_t precise = now_ns();
      if (idle_since == 0) idle_since = precise;
      if (!spin_.over(precise - idle_since)) continue;
      if (link_->connected() == 0 && !guarded(Guard::kSleepAlone)) {
        ++spins_alone_;
        continue;
      }
      slept = true;
      link_->sleep(static_cast<int>(std::max<std::int64_t>(next_tick_ - now, 0) / 1'000'000) + 1);
    }
  }

  // A restart makes as many workers as were asked for: at the end of a job's time SIGTERM may have sent all away.
  void notice_restart() {
    const int restarts = g_checkpoints.restarts;
    if (restarts == restarts_) return;
    restarts_ = restarts;
    (void)link_->farewells();  // of before
    link_->restarted();
    master_->restarted();
    show_door();
    next_tick_ = 0;
    char text[24] = "";  // restart --workers N
    if (shadowib_lookup("mw.workers", text, sizeof(text) - 1, 0) > 0) {
      if (const std::optional<std::size_t> number = workers_of(text)) asked_ = *number;
    }
    wanted_ = asked_;
  }

  // Workers that are no forks find the farm by it.
  void show_door() {
    const Door door = link_->door();
    const int error = shadowib_publish(kDoorName, &door, sizeof(door));
    if (error != 0) warn("workers from elsewhere will not find this farm: %s", shadowib_last_error());
  }

  // `shadowib run --guest`: this process is a worker of the job's master, and runs the program from its beginning.
  static bool is_guest() {
    const char* guest = std::getenv("SHADOWIB_GUEST");
    return guest != nullptr && *guest != '\0' && std::strcmp(guest, "0") != 0;
  }
  void come_from_elsewhere() {
    BirthFacts facts;
    facts.token = random_number();
    facts.wait_s = settings_.wait_s;
    facts.elsewhere = true;
    const int got = shadowib_lookup(kDoorName, &facts.door, sizeof(facts.door), kDoorMs);
    if (got != sizeof(facts.door))
      give_up("this process is a guest (SHADOWIB_GUEST), and finds no farm to work for: %s",
              got < 0 ? shadowib_last_error() : "that of the job is of another version");
    work_for(facts);
  }

  // `shadowib worker J -n N` publishes a wish for N more, and waits until it is counted as taken.
  void take_wishes() {
    for (;;) {
      char name[40], text[24] = "";
      std::snprintf(name, sizeof(name), "mw.wish.%llu", static_cast<unsigned long long>(wishes_taken_));
      const int bytes = shadowib_lookup(name, text, sizeof(text) - 1, 0);
      if (bytes > 0) {
        const std::size_t more = workers_of(text).value_or(0);
        asked_ += more;
        wanted_ += more;
        ++wishes_taken_;
      }
      if (bytes > 0 || !taken_published_) {
        std::snprintf(text, sizeof(text), "%llu", static_cast<unsigned long long>(wishes_taken_));
        taken_published_ = shadowib_publish("mw.taken", text, std::strlen(text)) == 0;
      }
      if (bytes <= 0) return;
    }
  }

  // Who leaves by SIGTERM is not replaced: so people have fewer workers.
  void notice_farewells() {
    const std::size_t left = std::min(wanted_, link_->farewells());
    wanted_ -= left;
    if (left != 0 && wanted_ == 0)
      warn("all workers have left, and the farm waits. `shadowib worker JOB -n N` makes more");
  }

  // Forks what is missing of the wanted workers. True: this process is one of them.
  bool bear_wanted() {
    notice_farewells();
    const std::uint32_t limit = std::max<std::uint32_t>(16, 4 * static_cast<std::uint32_t>(wanted_));
    if (master_->deaths_in_a_row() >= limit)
      give_up(
          "the last %u workers ended with a task, or just after they had joined, and no result came between: see "
          "what "
          "DoTask and UpdateSharedData do (core files, memory limits)",
          master_->deaths_in_a_row());
    while (link_->connected_forks() + link_->unheard() < wanted_) {
      BirthFacts facts;
      facts.token = random_number();
      facts.wait_s = settings_.wait_s;
      facts.master_pid = ::getpid();
      Born born;
      {
        const std::lock_guard<std::mutex> lock(g_checkpoints.forking);
        if (g_checkpoints.under_way) return false;  // after it, by the next tick
        link_->expect(facts.token, facts.wait_s);
        facts.door = link_->door();
        facts.updates = master_->updates().count();
        facts.phase = master_->phase();
        facts.chain = master_->updates().hash();
        pid_t process = 0;
        born = fork_worker(&process);
        if (born == Born::kMaster) link_->born(facts.token, process);
      }
      if (born == Born::kWorker) {
        become_worker(facts);
        return true;
      }
      if (born == Born::kFailed) {
        if (!std::exchange(fork_failed_, true))
          warn("no worker could be made: %s; it is tried again, four times a second", std::strerror(errno));
        link_->unexpect(facts.token);
        return false;
      }
      fork_failed_ = false;
    }
    return false;
  }

  void become_worker(const BirthFacts& facts) {
    // The master's objects are its own: they are left as they are, and never touched here.
    (void)link_.release();
#if defined(SHADOWIB_GUEST)
    if (const int error = shadowib_join_as(SHADOWIB_GUEST); error != 0) {
      warn("a worker cannot join: %s", shadowib_last_error());
      ::_exit(1);
    }
#endif
    work_for(facts);
  }

  void work_for(const BirthFacts& facts) {
    phase_ = facts.phase;
    replica_ = Replica(facts.updates, facts.chain);
    struct sigaction end {};
    end.sa_handler = [](int) { g_leave = true; };
    ::sigaction(SIGTERM, &end, nullptr);
    sigset_t term;
    ::sigemptyset(&term);
    ::sigaddset(&term, SIGTERM);
    ::sigprocmask(SIG_UNBLOCK, &term, nullptr);  // fork_worker() has blocked it
    worker_ = std::make_unique<WorkerLink>(facts, &g_leave);
    if (phase_ == 0) return;
    phase_ -= 1;  // slave_loop() enters it
  }

  // A worker's part of one farm.
  void slave_loop() {
    ++phase_;
    Message message;
    for (;;) {
      if (g_leave) leave();
      if (!worker_->next(&message, &g_leave)) {
        if (g_leave) leave();
        std::fflush(nullptr);
        ::_exit(0);  // the master is gone, and nobody waits for anything here
      }
      const Header& header = message.header;
      switch (header.kind) {
        case Kind::kTask:
          handout_ = header.number;
          generation_ = header.extra;
          round_ = static_cast<Round>(header.round);
          worker_->send_result(handout_, callbacks_.work(message.task));
          break;
        case Kind::kUpdate:
          apply(header.number, message);
          break;
        case Kind::kEnd:
          if (header.number >= phase_) return;
          break;
        default:
          break;
      }
    }
  }

  void apply(std::uint64_t number, const Message& message) {
    switch (replica_.next(number, message.input, message.output)) {
      case Replica::Verdict::kApply:
        if (callbacks_.update) callbacks_.update(message.input, message.output);
        return;
      case Replica::Verdict::kKnown:
        return;
      case Replica::Verdict::kGap:
        give_up("a worker has update %llu and gets %llu: it ends", static_cast<unsigned long long>(replica_.count()),
                static_cast<unsigned long long>(number));
    }
  }

  [[noreturn]] void leave() {
    worker_->send_leave(true, -1);
    std::fflush(nullptr);
    ::_exit(0);
  }

  Settings settings_;
  std::size_t asked_;   // at the start, by wishes, at a restart
  std::size_t wanted_;  // less who has left by SIGTERM
  Callbacks callbacks_;
  int hook_ = -1;
  std::unique_ptr<MasterLink> link_;
  std::unique_ptr<Master> master_;
  std::int64_t next_tick_ = 0;
  Spin spin_;
  std::uint64_t deaths_ = 0;  // that have been seen
  std::uint64_t wishes_taken_ = 0;
  std::uint64_t buffer_bytes_ = 0, spins_alone_ = 0;
  bool taken_published_ = false, fork_failed_ = false;
  int restarts_ = 0;
  // of a worker
  std::unique_ptr<WorkerLink> worker_;
  Replica replica_;
  std::uint64_t phase_ = 0, handout_ = 0, generation_ = 0;
  Round round_ = Round::kFirst;
};

}  // namespace

std::unique_ptr<Runtime> make_runtime(const Settings& settings) { return std::make_unique<Farm>(settings); }

}  // namespace shadowib::masterworker
