// The plan of connections, decided by the seed alone: both ends compute the same plan and never have to agree on one.
//
// A connection lives in epochs. In each it has a transport, two directions, and objects of its own that are made at
// its beginning and destroyed at its end. A direction is a row of operations, each of which any position tells by
// itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "storm/ledger.h"

namespace storm {

enum class Transport : std::uint8_t { kRc, kUc, kUd, kXrc };
const char* name_of(Transport transport);

// The ingredients of a run.
struct Variety {
  std::vector<Transport> transports{Transport::kRc, Transport::kUc, Transport::kUd, Transport::kXrc};
  int connections = 3;  // of each pair of processes, and of each process with itself
  bool strict = false;  // everything is signaled
  bool windows = true;
  bool extended = true;
  bool events = true;
  bool fences = true;
  int rnr_timer = 0;  // code of the time after which a refused message is repeated; 0: 1 to 12, by the seed
};

// When a receiver posts receives.
enum class Manner : std::uint8_t {
  kAmple,   // as soon as they are used up
  kLate,    // some time after the last one was: the sender is refused meanwhile
  kPermit,  // one at a time, when the place that the next write goes to has been read: flow control by refusal
  kPaced,   // as soon as they are used up; the sender is told and never sends more, so that no refusal is tolerated
};

struct DirectionPlan {
  std::uint64_t key;
  std::uint32_t operations;
  std::uint32_t send_depth, receive_depth;
  std::uint32_t slot_bytes;    // of messages, writes and their places: a multiple of 8, at least 16
  std::uint32_t ring;          // places that writes go to
  std::uint32_t hold;          // places that are consumed before the sender is told
  std::uint32_t signal_every;  // at least one in so many is signaled
  std::uint32_t chain;         // most requests posted at once
  std::uint32_t laziness;      // a turn in so many posts
  std::uint32_t pieces;        // most scatter/gather elements
  std::uint32_t max_inline;
  std::uint8_t read_depth;  // reads and atomics in flight
  std::uint8_t rnr_retry;
  Manner manner;
  bool repeating_ids;      // wr_ids are not unique
  bool builders;           // posted by ibv_wr_*
  bool shared_queue;       // received from the worker's shared receive queue
  bool fences;             // some requests wait for the answers of those before
  bool windowed;           // writes go through a memory window that the sender invalidates now and then
  bool ends_in_error;      // the receiving end's queue pair is brought to the error state at the end
  std::uint8_t rnr_timer;  // of the receiving end
  std::uint8_t weights[static_cast<int>(Kind::kCount)];
};

struct ConnectionPlan {
  Transport transport;
  DirectionPlan directions[2];  // [side] is what that side sends
  std::uint32_t linger;         // ticks that an epoch's end is put off
  bool by_gid;
};

struct Operation {
  Kind kind;
  std::uint32_t bytes;
  std::uint8_t pieces;
  bool signaled, inlined, fenced, solicited;
  std::uint8_t queue;    // of extended connections: which shared receive queue
  std::uint64_t detail;  // offsets, amounts: of the kind
};

// Two ends. `peers[0] <= peers[1]`: their processes.
struct Connection {
  int index;
  int peers[2];
};

// All connections of the run.
std::vector<Connection> connections(int processes, const Variety& variety);
ConnectionPlan plan_connection(std::uint64_t seed, const Variety& variety, const Connection& connection,
                               std::uint32_t epoch);
// n < plan.operations.
Operation operation_at(const DirectionPlan& plan, Transport transport, std::uint64_t n);
bool is_message(Kind kind);  // uses up a receive
bool is_to_ring(Kind kind);  // writes to the next place of the ring, in order
bool answers(Kind kind);     // brings something back
// Receives of the worker's shared queue, and their size.
inline constexpr std::uint32_t kSharedReceives = 192, kSharedBytes = 512;
// The immediate data of a message.
std::uint32_t immediate(const DirectionPlan& plan, std::uint64_t n);
// Of UD.
inline constexpr std::uint32_t kRouteHeader = 40, kDatagramBytes = 1024;

}  // namespace storm
