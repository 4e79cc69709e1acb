// Completion queues: of one queue pair or of many, plain or extended, polled or told of by events.
#pragma once

#include <atomic>
#include <unordered_map>

#include "storm/adapter.h"
#include "storm/random.h"

namespace storm {

// Receives the completions of a queue pair.
class CompletionSink {
 public:
  virtual void completed(const ibv_wc& wc) = 0;

 protected:
  ~CompletionSink() = default;
};

// A completion channel and the thread that is blocked on it.
class EventChannel {
 public:
  explicit EventChannel(Adapter& adapter);
  ~EventChannel();
  ibv_comp_channel* get() const { return channel_.get(); }

 private:
  void wait_for_events();
  Channel channel_;
  std::atomic<bool> stopping_{false};
  BlockingThread thread_;
};

class CompletionQueue {
 public:
  // `channel` null: polled all the time. Else only when an event has come: one that gets lost stops the traffic; but
  // if events are wanted for solicited messages only, it is polled all the time, too.
  CompletionQueue(Adapter& adapter, std::uint32_t entries, bool extended, EventChannel* channel,
                  bool solicited_only = false);
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  ibv_cq* get() const { return plain_; }
  // Called by its owner's thread, as poll().
  void add(std::uint32_t queue_pair, CompletionSink* sink);
  void remove(std::uint32_t queue_pair) { sinks_.erase(queue_pair); }
  // Gives what there is to the sinks; true if there was something.
  bool poll();
  // Called by the channel's thread.
  void event();

 private:
  static constexpr int kBatch = 32, kMostBatches = 64;
  int take(ibv_wc* wc);
  void resize();
  void arm();
  bool drain();

  EventChannel* const channel_;
  const bool solicited_only_;
  const std::uint32_t entries_;
  Dice dice_;
  Queue queue_;  // one of the two is null
  std::unique_ptr<ibv_cq_ex, void (*)(ibv_cq_ex*)> extended_;
  ibv_cq* plain_ = nullptr;
  std::unordered_map<std::uint32_t, CompletionSink*> sinks_;
  std::atomic<std::uint64_t> armed_{0}, events_{0};
  std::uint64_t served_ = 0;
  bool more_ = true;  // the last look ended before the queue was empty
};

}  // namespace storm
