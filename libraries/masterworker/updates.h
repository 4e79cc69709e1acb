// The log of updates: who joins a farm gets those since its birth, in order, each once (M2). No I/O.
//
// A worker is a fork of the master and has the shared data of that moment. So the log need only reach back to the
// oldest fork that has not joined yet; or to the beginning, for workers that are no forks. Updates are counted from 1
// over all phases (calls of TOPC_master_slave).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "libraries/masterworker/payload.h"

namespace shadowib::masterworker {

// A fingerprint of all updates so far, in order: equal on a master and a worker with equal histories.
struct ChainHash {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const ChainHash&, const ChainHash&) = default;
};
ChainHash extend(ChainHash chain, const Payload& input, const Payload& output);

struct Update {
  std::uint64_t phase = 0;
  Payload input, output;
};

class UpdateLog {
 public:
  // Appends the next update. Returns its number.
  std::uint64_t append(std::uint64_t phase, Payload input, Payload output);

  // How many there have been, and their fingerprint.
  std::uint64_t count() const { return count_; }
  ChainHash hash() const { return hash_; }

  // Keeps all from the beginning, while they take `most_bytes` of memory or less. Call it before the first.
  void keep_all(std::uint64_t most_bytes);
  // True: it was to keep all, and does so no more. At the next call false.
  bool has_let_go() { return std::exchange(let_go_, false); }
  // The memory that an update takes: its bytes, and the shares of the log and the allocator.
  static std::uint64_t cost(const Update& update) {
    return sizeof(Update) + 128 + update.input.size() + update.output.size();
  }

  // Keeps all after `count`, until released as often as pinned: one pin for a worker that is being born.
  void pin(std::uint64_t count) { ++pins_[count]; }
  void release(std::uint64_t count);

  // The update `number`, or null if the log does not reach back so far or has not come to it.
  const Update* find(std::uint64_t number) const;
  // Whether a worker that has `count` updates can get the others.
  bool reaches(std::uint64_t count) const { return count <= count_ && count + 1 >= first(); }
  std::uint64_t kept_bytes() const { return bytes_; }

 private:
  std::uint64_t first() const { return count_ - kept_.size() + 1; }
  void cut();

  std::deque<Update> kept_;
  std::map<std::uint64_t, std::uint32_t> pins_;
  std::uint64_t count_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t most_bytes_ = 0;  // 0: not all are kept
  bool let_go_ = false;
  ChainHash hash_;
};

}  // namespace shadowib::masterworker
