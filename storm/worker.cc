#include "storm/worker.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace storm {
namespace {

constexpr std::uint32_t kShare = 1500;  // completions of an end's sends, and as many of its receives
constexpr int kIdleTurns = 20;          // before the thread rests

}  // namespace

Worker::Worker(Adapter& adapter, const Options& options, int number, const std::vector<End>& ends,
               const std::atomic<std::uint64_t>& ticks, const std::atomic<bool>& stop)
    : commons_{adapter, options, ticks, stop},
      channel_(options.variety.events ? new EventChannel(adapter) : nullptr) {
  commons_.channel = channel_.get();
  make_queues(ends.size());
  commons_.shared =
      std::make_unique<SharedReceives>(adapter.domain(number), key_of(options.seed, options.rank, number));
  for (const End& end : ends) endpoints_.push_back(std::make_unique<Endpoint>(commons_, end));
}

Worker::~Worker() {
  // In the order that ibv_destroy_cq and ibv_destroy_srq ask for: the queue pairs first, the channel last.
  endpoints_.clear();
  commons_.shared.reset();
  commons_.queues.clear();
}

// Plain and extended ones, polled and told of by events.
void Worker::make_queues(std::size_t ends) {
  const Variety& variety = commons_.options.variety;
  // A queue may be resized to twice as many, and the library below may need half as much again, for completions that
  // nobody has asked for.
  const auto count = static_cast<std::uint32_t>(std::max<std::size_t>(ends, 1));
  const std::uint32_t entries = std::min(2 * count * kShare, commons_.adapter.max_completions() / 6);
  commons_.share = entries / (2 * count);
  for (int kind = 0; kind < 4; ++kind) {
    const bool extended = (kind & 1) != 0, events = (kind & 2) != 0;
    if ((extended && !variety.extended) || (events && !variety.events)) continue;
    commons_.queues.push_back(
        std::make_unique<CompletionQueue>(commons_.adapter, entries, extended, events ? commons_.channel : nullptr));
  }
}

void Worker::start() {
  thread_ = std::thread([this] {
    run();
    ended_ = true;
  });
}

void Worker::run() {
  int idle = 0;
  bool all_over = false;
  while (!all_over && !ledger().failed()) {
    bool some = false;
    for (auto& queue : commons_.queues) some |= queue->poll();
    some |= commons_.shared->step();
    all_over = true;
    for (auto& endpoint : endpoints_) {
      some |= endpoint->step();
      all_over &= endpoint->over();
    }
    idle = some ? 0 : idle + 1;
    if (idle > kIdleTurns) ::usleep(50);  // gives the processor to others; nothing waits for it
  }
  if (!ledger().failed()) return;
  std::string text;
  for (auto& endpoint : endpoints_) text += "  " + endpoint->describe() + "\n";
  std::fputs(text.c_str(), stderr);
}

std::uint64_t Worker::idle_ticks() const {
  std::uint64_t longest = 0;
  for (const auto& endpoint : endpoints_) longest = std::max(longest, endpoint->idle_ticks());
  return longest;
}

}  // namespace storm
