// The memory of a queue pair at a border, for a side that goes back to a checkpoint (docs/internals/federation.md).
// It keeps requests that have left, results of atomics, and how far both sides were at each CLC. Under the engine's
// lock.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "hooks/federation/rule.h"
#include "ib2tcp/wire.h"
#include "shadowib/abi/backend.h"

namespace shadowib::ib2tcp {

// How far the number `a` is ahead of `b`; both are modulo 2^32.
inline std::int32_t ahead_of(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b); }

struct Kept {
  // A peer that goes back asks again for those that its send queue held.
  static constexpr std::size_t kMostResults = 4096;
  static constexpr std::size_t kMostClcs = 1024;

  std::deque<BorderLogEntry*> log;  // ascending, in the shim's memory
  // Some request before this number is not in it, and the peer is not known to have run all of those.
  bool unlogged = false;
  std::uint32_t dropped_before = 0;
  bool told_full = false;
  bool waits_for_room = false;  // the next request does not fit into it
  bool lost = false;            // retries have run out, and the agent has been asked whether the peer comes back

  std::deque<BorderResult> results;  // of atomics that ran here, ascending; at most kMostResults

  // A refusal that has been told, and is told again on another connection.
  struct Refusal {
    Syndrome syndrome = Syndrome::kNone;
    std::uint32_t seq = 0;
    federation::Sn sn = 0;
  } refusal;

  // Requests that the program has completions of, and the peer has not run. Those before replay_acked have run now.
  // Those before replay_next are on their way. replay_end is the first one of the send queue.
  std::uint32_t replay_acked = 0, replay_next = 0, replay_end = 0;
  // The peer's cluster went back, or this one, and no RESUME has said yet what is to be sent again.
  bool unknown = false;

  // Made by restore_border, until both sides have said which request they expect.
  bool restored = false;
  bool sends_anew = false;                // it has sent nothing before: its numbers begin where the program says
  std::uint32_t first = 0, expected = 0;  // until it is in RTS, and in RTR

  // The peer has run the requests of the queue before that number. Not all of them count so yet: some request among
  // them has no number, and waits for its turn.
  bool skips = false;
  std::uint32_t skip_end = 0;

  // The peer's requests before that number had left before this connection, and this process went back. The first one
  // behind them ends that.
  bool repeats = false;
  std::uint32_t repeats_end = 0;

  struct Clc {
    federation::Sn sn;
    std::uint32_t first, expected;  // as in BorderState
  };
  std::vector<Clc> clcs;  // ascending
  // To be told to the peer: it may trim its log to the one, and forget results before the other.
  bool tells_stable = false;
  std::uint32_t stable_expected = 0, stable_first = 0;
  federation::Sn stable_sn = 0;

  std::uint64_t traced = 0;          // requests of the queue before this one
  std::uint32_t answers_traced = 0;  // of atomics, before this one (Qp::answers_begin_)

  // It left before what is in the log, and is not there: no place is left for it.
  bool is_behind(std::uint32_t number) const;
  bool replays() const { return replay_acked != replay_end; }
  void end_replay() { replay_acked = replay_next = replay_end; }
  // nullptr: it is not there.
  const BorderLogEntry* find(std::uint32_t number) const;
  // All from `begin` to before `end` are there.
  bool covers(std::uint32_t begin, std::uint32_t end) const;
  const BorderResult* find_result(std::uint32_t number) const;
  // False: the oldest one is not there any more, and the peer might ask for it.
  bool keep_result(std::uint32_t number, std::uint64_t value);
};

}  // namespace shadowib::ib2tcp
