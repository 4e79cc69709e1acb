// The gate of one cluster that went back: in which order survivors send it again what it has forgotten.
//
// A program takes a completion for granted: what it posts afterwards, on any queue pair or in any process, runs
// afterwards. So a request waits until every request that completed before it left has run again. Times are
// nanoseconds of CLOCK_MONOTONIC, on one host. A request that left later than it was posted only waits for more, and
// never for one that ran behind it. A request without a completion of its own completes with the next one of its
// queue pair that has one: before that the program knows nothing of it. docs/internals/federation.md has the protocol
// between processes.
//
// A pure rule, without I/O. Under the engine's lock.
#pragma once

#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shadowib/abi/backend.h"

namespace shadowib::ib2tcp {

inline constexpr std::uint64_t kNothingLeft = kGateNothing;  // to be sent again
inline constexpr std::uint64_t kNotYetKnown = 0;             // whether, and what
// In the time of a request that has run, when no completion has told so. The rest says when it was known here to have
// run. It is later than each request of the log, which does not wait for it, and earlier than those that have not
// left.
inline constexpr std::uint64_t kNotTold = std::uint64_t{1} << 63;

class Gate {
 public:
  // The queue pair of that number still sends again requests that have completed; the first did so at `completed`.
  void set(std::uint32_t queue_pair, std::uint64_t completed);
  // The state of other processes, which send again as well. True if that is news.
  bool set_others(const GateState& others);

  // The one of this process, for the others.
  std::uint64_t earliest() const { return own_.empty() ? kNothingLeft : own_.begin()->first; }
  // How far others have to come for somebody here to be ready. kNothingLeft: nobody waits for them, or for less.
  std::uint64_t awaits() const { return behind_others_.empty() ? kNothingLeft : behind_others_.begin()->first; }
  // Nobody sends anything again: whatever is new may go.
  bool is_open() const { return own_.empty() && others_.earliest == kNothingLeft; }
  // Whether a request may go that left the first time at `left` (kNothingLeft: it has never left). `completed`: when
  // it did so, 0: it has no completion. On a queue pair the order is the stream's, so that it is not asked.
  bool lets(std::uint32_t queue_pair, std::uint64_t left, std::uint64_t completed) const;

  // The queue pair waits, instead of for anything before: lets() does not let its request go.
  void wait(std::uint32_t queue_pair, std::uint64_t left, std::uint64_t completed);
  // It waits for is_open(), unless it waits already. It may be woken before.
  void wait_until_open(std::uint32_t queue_pair);
  // Those that need not wait any longer, after a change. They wait no more. Each change costs as much as it lets go,
  // and no look at the others.
  std::vector<std::uint32_t> take_ready();

 private:
  struct Waiting {
    std::uint64_t left, completed;
  };
  using Places = std::set<std::pair<std::uint64_t, std::uint32_t>>;  // what is waited for, and queue pairs

  bool is_behind_own(std::uint32_t queue_pair, std::uint64_t left) const;
  std::uint64_t needs_of_others(const Waiting& waiting) const;
  void place(std::uint32_t queue_pair, const Waiting& waiting);
  void forget_place(std::uint32_t queue_pair, const Waiting& waiting);

  Places own_;  // times of completion
  std::unordered_map<std::uint32_t, std::uint64_t> times_;
  GateState others_{kNothingLeft, 0, 0, 0};
  std::unordered_map<std::uint32_t, Waiting> waiting_;
  // Each that waits is in one of these: until `own_` begins later than it left; until others have come so far.
  Places behind_own_, behind_others_;
};

}  // namespace shadowib::ib2tcp
