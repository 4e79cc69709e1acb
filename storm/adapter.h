// A process-wide part: the device, protection domains, counters that all may add to, and the thread that hears of
// asynchronous events.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "storm/control.h"
#include "storm/objects.h"

namespace storm {

// A thread that waits in blocking calls. To end it is to have its condition to go on fail, and to interrupt the call.
class BlockingThread {
 public:
  void start(std::function<void()> run);
  // Sends signals, which do nothing else, until the thread has ended: one may come just before the call.
  void interrupt_and_join();

 private:
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// Tells a shared receive queue's owner that its limit was reached. Called by the thread of asynchronous events.
class LimitListener {
 public:
  virtual void limit_reached() = 0;

 protected:
  ~LimitListener() = default;
};

class Adapter {
 public:
  explicit Adapter(const std::string& device_name);
  ~Adapter();
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  ibv_context* context() const { return context_.get(); }
  ibv_pd* domain(int i) const { return domains_[i % kDomains].get(); }
  std::uint32_t counters_rkey(int i) const { return counter_regions_[i % kDomains]->rkey; }
  std::uint64_t* counters() { return counters_.data(); }

  // This end, and the way to another: by GID if that is asked for or the link layer has no other.
  void describe(Address* address) const;
  ibv_ah_attr route_to(const Address& there, bool by_gid) const;
  bool always_global() const { return global_; }

  // The most completions that a queue holds.
  std::uint32_t max_completions() const;
  // Checks whether the facts that the program knows of the device have changed.
  void check_identity() const;

 private:
  static constexpr int kDomains = 2;
  void find_address();
  void hear_events();

  Device context_;
  std::array<Domain, kDomains> domains_;
  std::array<Region, kDomains> counter_regions_;
  alignas(64) std::array<std::uint64_t, kSharedCounters> counters_{};
  std::uint16_t lid_ = 0;
  int gid_index_ = 0;
  union ibv_gid gid_ {};
  bool global_ = false;
  std::atomic<bool> stopping_{false};
  BlockingThread events_;
};

}  // namespace storm
