// A thread that drives some connections' ends, with the completion queues and the shared receive queue of all of
// them.
#pragma once

#include <thread>

#include "storm/endpoint.h"

namespace storm {

class Worker {
 public:
  Worker(Adapter& adapter, const Options& options, int number, const std::vector<End>& ends,
         const std::atomic<std::uint64_t>& ticks, const std::atomic<bool>& stop);
  ~Worker();
  void start();
  void join() { thread_.join(); }
  bool ended() const { return ended_; }
  // The longest time that an end has not moved, in ticks.
  std::uint64_t idle_ticks() const;
  // Once it has ended.
  const std::vector<std::unique_ptr<Endpoint>>& endpoints() const { return endpoints_; }

 private:
  void run();
  void make_queues(std::size_t ends);
  Commons commons_;
  std::unique_ptr<EventChannel> channel_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace storm
