// A worker's count of updates: each is applied once, in order (M2).
#pragma once

#include <cstdint>

#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/updates.h"

namespace shadowib::masterworker {

class Replica {
 public:
  Replica() = default;
  // A fork of a master that has `count` updates with this fingerprint.
  Replica(std::uint64_t count, ChainHash hash) : count_(count), hash_(hash) {}

  enum class Verdict { kApply, kKnown, kGap };
  // Call before an update is applied. kGap: updates are missing, this worker must not go on.
  Verdict next(std::uint64_t number, const Payload& input, const Payload& output) {
    if (guarded(Guard::kSkipKnown) && number <= count_) return Verdict::kKnown;
    if (guarded(Guard::kCatchUp) && number > count_ + 1) return Verdict::kGap;
    count_ = number;
    hash_ = extend(hash_, input, output);
    return Verdict::kApply;
  }

  std::uint64_t count() const { return count_; }
  ChainHash hash() const { return hash_; }

 private:
  std::uint64_t count_ = 0;
  ChainHash hash_;
};

}  // namespace shadowib::masterworker
