#include "storm/process.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "storm/churn.h"
#include "storm/worker.h"

namespace storm {
namespace {

constexpr std::uint64_t kTicksASecond = 10;

// Counts the time in which this process runs: a stop, however long, is a tick.
void rest_for_a_tick() {
  const timespec tick{0, 1000000000 / kTicksASecond};
  ::nanosleep(&tick, nullptr);
}

bool exists(const std::string& file) { return ::access(file.c_str(), F_OK) == 0; }

void create(const std::string& file) {
  if (std::FILE* f = std::fopen(file.c_str(), "w")) std::fclose(f);
}

class File {
 public:
  explicit File(const std::string& name) : fd_(::open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) {
    succeeded(fd_ >= 0, name.c_str(), 0);
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

class Process {
 public:
  explicit Process(const Options& options)
      : options_(options),
        progress_(options.area + "/progress-" + std::to_string(options.rank)),
        ends_(meet(options.area, options.rank, options.processes, connections(options.processes, options.variety))),
        adapter_(options.device),
        churn_(adapter_, key_of(options.seed, options.rank, 23), ticks_,
               static_cast<std::uint64_t>(options.patience) * kTicksASecond) {
    for (int w = 0; w < options.workers; ++w) {
      std::vector<End> share;
      for (std::size_t i = static_cast<std::size_t>(w); i < ends_.size();
           i += static_cast<std::size_t>(options.workers))
        share.push_back(ends_[i]);
      workers_.push_back(std::make_unique<Worker>(adapter_, options, w, share, ticks_, stop_));
    }
  }

  void run() {
    for (auto& worker : workers_) worker->start();
    churn_.start();
    watch();
    churn_.stop();
    for (auto& worker : workers_) worker->join();
    if (ledger().failed()) return;
    check_counters();
    adapter_.check_identity();
  }

 private:
  void watch() {
    bool running = true;
    while (running && !ledger().failed()) {
      rest_for_a_tick();
      const std::uint64_t now = ++ticks_;
      if (exists(options_.area + "/failed")) ledger().give_up("another process has found something wrong");
      if (!stop_ && exists(options_.area + "/stop")) stop_ = true;
      if (!stop_ && options_.seconds > 0 && now > static_cast<std::uint64_t>(options_.seconds * kTicksASecond))
        stop_ = true;
      running = false;
      for (auto& worker : workers_) {
        running |= !worker->ended();
        if (worker->idle_ticks() > static_cast<std::uint64_t>(options_.patience) * kTicksASecond)
          ledger().fault(Fault::kHung, "a connection has not moved for %d seconds", options_.patience);
      }
      say_progress();
    }
    if (ledger().failed()) create(options_.area + "/failed");
  }

  // For the driver, which waits for traffic: operations so far, always in the same place.
  void say_progress() {
    char text[32];
    const int size = std::snprintf(text, sizeof(text), "%20lu\n", ledger().operations());
    if (::pwrite(progress_.get(), text, static_cast<std::size_t>(size), 0) != size)
      succeeded(false, "writing the progress file", 0);
  }

  // Each addition has found what no other has found, and none is missing.
  void check_counters() {
    SharedAdditions sum;
    for (auto& worker : workers_)
      for (auto& endpoint : worker->endpoints())
        for (int i = 0; i < kSharedCounters; ++i) {
          sum.count[i] += endpoint->peers_additions().count[i];
          sum.hash[i] += endpoint->peers_additions().hash[i];
        }
    for (int i = 0; i < kSharedCounters; ++i) {
      const std::uint64_t value = adapter_.counters()[i];
      if (value != sum.count[i]) {  // whatever it is: nothing is counted up to it
        ledger().fault(value > sum.count[i] ? Fault::kDoubled : Fault::kLost,
                       "shared counter %d is %lu after %lu additions", i, value, sum.count[i]);
        continue;
      }
      std::uint64_t hash = 0;
      for (std::uint64_t v = 0; v < value; ++v) hash += mix(v);
      if (hash != sum.hash[i])
        ledger().fault(Fault::kDoubled, "of %lu additions to shared counter %d two have found the same", value, i);
    }
  }

  const Options& options_;
  const File progress_;
  std::vector<End> ends_;
  Adapter adapter_;
  std::atomic<std::uint64_t> ticks_{1};
  Churn churn_;
  std::atomic<bool> stop_{false};
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace

int run_process(const Options& options) {
  ledger().set_name(std::to_string(options.rank));
  saboteur().choose(options.sabotage);
  try {
    Process process(options);
    process.run();
    if (ledger().failed()) create(options.area + "/failed");
  } catch (const std::exception& error) {
    ledger().fault(Fault::kRefused, "%s", error.what());
    create(options.area + "/failed");
  }
  const std::string report = options.area + "/report-" + std::to_string(options.rank) + ".json";
  std::FILE* file = std::fopen(report.c_str(), "w");
  if (file == nullptr || std::fprintf(file, "%s\n", ledger().json().c_str()) < 0 || std::fclose(file) != 0) return 1;
  return ledger().failed() ? 1 : 0;
}

}  // namespace storm
