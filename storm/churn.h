// Objects that come and go beside the traffic, each with a small life of its own: whatever stage a checkpoint finds
// it in, it goes on from there.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "storm/adapter.h"
#include "storm/random.h"

namespace storm {

// One object or a few that belong together.
class Trinket {
 public:
  virtual ~Trinket() = default;
  // The next moment of its life; false at its end.
  virtual bool step(Dice& dice) = 0;
};

class Churn {
 public:
  // `ticks` tells the time in which this process ran; who waits for more than `patience` of them hangs.
  Churn(Adapter& adapter, std::uint64_t key, const std::atomic<std::uint64_t>& ticks, std::uint64_t patience)
      : adapter_(adapter), dice_(key), ticks_(ticks), patience_(patience) {}
  ~Churn() { stop(); }
  void start();
  void stop();

 private:
  static constexpr int kTrinkets = 12;
  void run();
  std::unique_ptr<Trinket> make();
  Adapter& adapter_;
  Dice dice_;
  const std::atomic<std::uint64_t>& ticks_;
  const std::uint64_t patience_;
  std::vector<std::unique_ptr<Trinket>> trinkets_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace storm
