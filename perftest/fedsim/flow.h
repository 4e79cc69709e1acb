// The messages from one cluster to another, in order: what was posted, delivered, logged. Owned by one simulation.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "hooks/federation/rule.h"
#include "perftest/fedsim/input.h"

namespace shadowib::fedsim {

struct FlowMessage {
  std::uint64_t id;  // a ghost: no two messages have one
  unsigned node;     // the sender's
  federation::Stamp stamp;
};

struct Flow {
  unsigned from = 0, to = 0;
  std::vector<FlowMessage> posted;       // by number; a recovery of the sender cuts it
  std::vector<std::uint64_t> delivered;  // ids; a recovery of the receiver cuts it
  std::uint64_t arrived = 0;             // the next number to come off the wire
  std::uint64_t logged = 0;              // numbers from here are in the sender's log
  std::uint64_t epoch = 0;               // of the connection: what an earlier one carried is dropped
  bool held = false;                     // it stands at its next message, and that was told

  // nullptr if deliveries are the first posts, in order, and the log has the rest.
  const char* wrong() const {
    if (delivered.size() > posted.size()) return "a message has no sender";
    for (std::size_t i = 0; i < delivered.size(); ++i)
      if (delivered[i] != posted[i].id) return "a message is not the one that was posted";
    if (logged > delivered.size()) return "a message that was not delivered is in no log";
    return nullptr;
  }
};

}  // namespace shadowib::fedsim
