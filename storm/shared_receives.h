// A shared receive queue that is filled again when its limit event says so, and only then: one that gets lost stops
// the traffic.
#pragma once

#include <atomic>

#include "storm/adapter.h"
#include "storm/receives.h"

namespace storm {

class SharedReceives : public LimitListener {
 public:
  SharedReceives(ibv_pd* domain, std::uint64_t key);
  void limit_reached() override;
  // Called by the thread that polls the completions; true if it has posted receives.
  bool step();
  ibv_srq* get() const { return queue_.get(); }
  ibv_pd* domain() const { return domain_; }
  Receives& receives() { return receives_; }

 private:
  static constexpr std::uint32_t kLimit = kSharedReceives / 4;
  void fill_and_arm();
  ibv_pd* const domain_;
  std::vector<std::uint8_t> memory_;
  Region region_;
  SharedQueue queue_;
  Receives receives_;
  std::atomic<std::uint64_t> armed_{0}, reached_{0};
};

}  // namespace storm
