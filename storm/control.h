// How the ends of a connection talk to each other beside it: a socket for each connection, made before any traffic.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "storm/plan.h"

namespace storm {

enum class Word : std::uint32_t {
  kAddress,   // where an epoch's objects are
  kReady,     // receives are posted as the plan has it: traffic may begin
  kCredit,    // values: places released, receives posted
  kWindow,    // values: the key by which it is bound now
  kPosted,    // values: operations posted, of an unreliable sender that cannot go on
  kDone,      // all operations are posted, and those that had to complete have
  kReceived,  // all of them have arrived, or been dropped
  kFlushed,   // values: of atomics, what the counter and the register are at the end
  kBye,       // values: whether this side wants to stop; all objects are gone
  kFarewell,  // values: of shared additions, counts and hashes
};

struct Address {
  std::uint32_t receiving, sending;  // queue pair numbers; of XRC they differ
  std::uint32_t shared[2];           // of XRC: the queues to be named
  std::uint32_t rkey, counters_rkey, window_rkey;
  std::uint16_t lid;
  union ibv_gid gid;
  std::uint64_t memory, counters;
};

inline constexpr int kSharedCounters = 8;

struct Message {
  Word word;
  std::uint32_t epoch;
  Address address;
  std::uint64_t values[2 * kSharedCounters];
};

class Control {
 public:
  explicit Control(int fd) : fd_(fd) {}
  Control(Control&& other) noexcept;
  ~Control();
  // Never waits: what does not fit goes with a later call of either.
  void say(const Message& message);
  // The next message, if a whole one is there.
  bool hear(Message* message);
  bool gone() const { return gone_; }

 private:
  void push();
  int fd_;
  bool gone_ = false;
  std::deque<char> outgoing_, incoming_;
};

// One end of a connection: side 0 is of peers[0]. `fd` blocks not.
struct End {
  Connection connection;
  int side;
  int fd;
};

// Finds the other processes by files in `area` and connects every connection's ends. Blocks until all are there.
std::vector<End> meet(const std::string& area, int rank, int processes, const std::vector<Connection>& all);

}  // namespace storm
