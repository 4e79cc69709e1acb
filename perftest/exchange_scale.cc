// What a restart of many members asks of an exchange: each publishes its ids, reads those of its peers and passes the
// barriers. exchange_scale URI MEMBERS QUEUE_PAIRS PEERS; prints seconds per phase as JSON.
//
// Each member is a thread with an exchange of its own, as it would be a process with one. Sixty-four of them are a
// process: more would wait for each other's heap and page tables, and not for the exchange.
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "perftest/processes.h"
#include "shadowib/base/lock.h"
#include "shadowib/exchange/exchange.h"
#include "shadowib/exchange/remove_below.h"

namespace {

using namespace shadowib;

constexpr char kEpoch[] = "g1-scale";
constexpr int kTimeoutMs = 600000;

struct Scale {
  std::string uri;
  int members, queue_pairs, peers;
};

// As large as a directory of cr/published_ids.h: twelve bytes for each queue pair, and for each of 32 regions.
std::string ids_of(const Scale& scale, int member) {
  return std::string((static_cast<std::size_t>(scale.queue_pairs) + 32) * 12, static_cast<char>('a' + member % 26));
}

std::string key(const std::string& rest) { return std::string(kEpoch) + "/" + rest; }

constexpr int kMembersInProcess = 64;
constexpr int kMarks = 6;

// What all processes see.
struct Shared {
  pthread_barrier_t together;
  std::int64_t marks[kMarks];
  std::atomic<std::uint64_t> operations;
};

class Run {
 public:
  explicit Run(const Scale& scale) : scale_(scale) {
    init_barrier(&shared_->together, static_cast<unsigned>(scale.members));
  }

  // False: a process has failed, and said why.
  bool go() {
    Processes processes;
    for (int first = 0; first < scale_.members; first += kMembersInProcess)
      processes.start([&] { part(first, std::min(first + kMembersInProcess, scale_.members)); });
    return processes.wait();
  }

  void print() const {
    static constexpr const char* kNames[] = {"open", "publish", "barrier", "resolve", "barriers"};
    double total = 0;
    std::printf("{\"members\": %d, \"queue_pairs\": %d, \"peers\": %d", scale_.members, scale_.queue_pairs,
                scale_.peers);
    for (std::size_t i = 0; i < 5; ++i) {
      const double seconds = static_cast<double>(shared_->marks[i + 1] - shared_->marks[i]) / 1e9;
      if (i > 0) total += seconds;  // members open it one by one, as they start
      std::printf(", \"%s_s\": %.6f", kNames[i], seconds);
    }
    std::printf(", \"total_s\": %.6f, \"operations\": %llu}\n", total,
                static_cast<unsigned long long>(shared_->operations.load()));
  }

 private:
  void part(int first, int end) {
    std::vector<std::thread> threads;
    for (int m = first; m < end; ++m) threads.emplace_back([this, m] { member(m); });
    for (std::thread& thread : threads) thread.join();
  }

  // All have come to it when anybody goes on, and the time is taken in between.
  void mark(int which) {
    if (::pthread_barrier_wait(&shared_->together) == PTHREAD_BARRIER_SERIAL_THREAD)
      shared_->marks[which] = monotonic_ns();
    ::pthread_barrier_wait(&shared_->together);
  }

  void pass(Exchange& exchange, const char* name, int m) {
    must(name, exchange.barrier(key(std::string("restart/b/") + name), std::to_string(m), scale_.members, kTimeoutMs,
                                key("restart/abort")));
  }

  void resolve(Exchange& exchange, int m) {
    std::vector<std::string> keys, values;
    std::vector<bool> found;
    for (int p = 1; p <= scale_.peers; ++p)
      keys.push_back(
          key("rebuild/" + std::to_string((m + p * (scale_.members / (scale_.peers + 1) + 1)) % scale_.members)));
    must("resolve", exchange.lookup(keys, &values, &found));
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const int peer = std::atoi(keys[i].c_str() + key("rebuild/").size());
      if (!found[i] || values[i] != ids_of(scale_, peer))
        give_up("resolve", Status::of(Code::kInternal, 0, "%s is not what was published", keys[i].c_str()));
    }
  }

  void member(int m) {
    std::unique_ptr<Exchange> exchange;
    mark(0);
    must("open", Exchange::open(scale_.uri, true, &exchange));
    mark(1);
    must("publish", exchange->publish(key("rebuild/" + std::to_string(m)), ids_of(scale_, m)));
    mark(2);
    pass(*exchange, "published", m);
    mark(3);
    resolve(*exchange, m);
    mark(4);
    pass(*exchange, "connected", m);
    pass(*exchange, "go", m);
    mark(5);
    shared_->operations += exchange->operations();
  }

  const Scale scale_;
  Shared* const shared_ = make_shared<Shared>();
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: exchange_scale URI MEMBERS QUEUE_PAIRS PEERS\n");
    return 2;
  }
  const Scale scale{argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4])};
  if (scale.members < 2 || scale.queue_pairs < 1 || scale.peers < 1 || scale.peers >= scale.members) {
    std::fprintf(stderr, "exchange_scale: two members and more, each with fewer peers than there are members\n");
    return 2;
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);  // what has been given back is needed again
  Run run(scale);
  if (!run.go()) return 1;
  must("remove", remove_below(scale.uri, kEpoch));
  run.print();
}
