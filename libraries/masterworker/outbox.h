// Messages that wait to be sent to one worker, and the rule when it lags too far behind (M12). No I/O.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "libraries/masterworker/guard.h"
#include "libraries/masterworker/payload.h"
#include "libraries/masterworker/protocol.h"

namespace shadowib::masterworker {

inline constexpr std::uint64_t kMostLagBytes = 256 << 20;

struct Outgoing {
  Header header;
  Payload input, output;
  std::uint64_t lag_bytes = 0;  // what it counts in its outbox
};

class Outbox {
 public:
  explicit Outbox(std::uint64_t most_bytes = kMostLagBytes) : most_(most_bytes) {}

  // Counts a message that goes to the worker: now, or once it has been add()ed. False: the worker lags behind by more
  // updates than it may. Neither this message nor any other ever will go: a worker must not go on without it. One
  // message alone always may. `behind`: false for a newcomer that gets what was before it.
  bool admit(Outgoing& message, bool behind = true) {
    const std::uint64_t bytes = message.lag_bytes = behind ? weight(message) : 0;
    if (guarded(Guard::kLimitLag) && bytes != 0 && bytes_ != 0 && bytes_ + bytes > most_) close();
    if (closed_) return false;
    bytes_ += bytes;
    return true;
  }
  void add(Outgoing message) { waiting_.push_back(std::move(message)); }
  // A message is lost on its way to the worker: nothing follows.
  void close() {
    closed_ = true;
    waiting_.clear();
  }
  bool closed() const { return closed_; }
  bool empty() const { return waiting_.empty(); }
  const Outgoing& front() const { return waiting_.front(); }
  // The first is on its way: its bytes count until taken() is told of them.
  Outgoing pop() {
    Outgoing first = std::move(waiting_.front());
    waiting_.pop_front();
    return first;
  }
  void taken(std::uint64_t bytes) { bytes_ -= bytes; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  // Tasks are as many as the program has asked for to be posted ahead, and no sign that the worker lags.
  static std::uint64_t weight(const Outgoing& message) {
    if (message.header.kind != Kind::kUpdate) return 0;
    return sizeof(Header) + message.input.size() + message.output.size();
  }

  std::deque<Outgoing> waiting_;
  std::uint64_t most_;
  std::uint64_t bytes_ = 0;
  bool closed_ = false;
};

}  // namespace shadowib::masterworker
