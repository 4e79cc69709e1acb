// One end of a connection over all its epochs: makes the objects, connects them, lets both directions run, compares
// what both ends have come to, and destroys the objects again.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "storm/completions.h"
#include "storm/control.h"
#include "storm/options.h"
#include "storm/sender.h"
#include "storm/shared_receives.h"

namespace storm {

// Shared by the endpoints of a worker.
struct Commons {
  Adapter& adapter;
  const Options& options;
  const std::atomic<std::uint64_t>& ticks;  // tenths of seconds in which this process ran
  const std::atomic<bool>& stop;            // end with this epoch
  EventChannel* channel = nullptr;
  std::uint32_t share = 0;  // completions that a queue pair may have in a queue of many, of sends and of receives
  std::vector<std::unique_ptr<CompletionQueue>> queues;
  std::unique_ptr<SharedReceives> shared;
};

class Endpoint {
 public:
  Endpoint(Commons& commons, const End& end);
  ~Endpoint();

  // True if there was something to do.
  bool step();
  bool over() const { return state_ == State::kOver; }
  // Called by the watcher's thread: ticks since the last progress; 0 once it is over.
  std::uint64_t idle_ticks() const;
  std::string describe() const;
  // The peer's additions to this process' counters, once over.
  const SharedAdditions& peers_additions() const { return peers_additions_; }

 private:
  enum class State { kMaking, kConnecting, kTraffic, kFlushing, kFlushed, kErring, kParting, kFarewell, kOver };
  struct Epoch;

  void make();
  void connect();
  bool run();
  void begin_flush();
  void compare();
  bool finish_receives();
  void part();
  void next_epoch();
  void say(Word word, std::uint64_t first = 0, std::uint64_t second = 0);
  void say_farewell();
  bool listen();
  void heard(const Message& message);
  std::uint64_t epoch_completions() const;

  Commons& commons_;
  const End end_;
  Control control_;
  State state_ = State::kMaking;
  std::uint32_t number_ = 0;  // of the epoch
  std::unique_ptr<Epoch> epoch_;
  std::uint32_t heard_ = 0;  // a bit for each Word of this epoch
  std::uint64_t compared_[2] = {0, 0};
  std::uint64_t linger_until_ = 0;
  std::uint64_t peer_posted_ = 0, told_at_ = 0, completions_ = 0;
  bool said_done_ = false, said_received_ = false, flush_posted_ = false, last_ = false;
  SharedAdditions additions_, peers_additions_;
  std::atomic<std::uint64_t> moved_at_;
  std::atomic<bool> over_{false};
};

}  // namespace storm
