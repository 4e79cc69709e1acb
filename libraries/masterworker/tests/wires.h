// A simulated RDMA device in place of libibverbs, for tests of the master's end of the wire. Nothing moves by itself:
// a test says which requests of the master complete, and what arrives. It plays the workers, whose memory is the
// test's; or the master, where a worker is under test.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "libraries/masterworker/protocol.h"

namespace shadowib::masterworker {

// A request that the master has posted.
struct Posted {
  std::uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  std::string bytes;  // as they lay at the post
  unsigned flags = 0;
  ibv_sge piece{};
  std::uint64_t address = 0;  // of a READ or WRITE
};

// One device for the process. reset() before each test.
class Wires {
 public:
  static Wires& get();
  void reset() { *this = Wires(); }

  // A first contact arrives. The master's answers are in `answers`, oldest first.
  void hello(const Hello& hello);
  std::vector<Welcome> answers;
  // A worker under test says hello. This answers by welcome() at once, later or never.
  std::function<void(const Hello&)> on_hello;
  // False: the worker has no receive request for it.
  bool welcome(const Welcome& welcome);
  // A completion queue of more entries is refused.
  int most_completions = 1 << 22;
  bool has_queue_pairs = true;       // else none is made
  std::uint32_t most_inline = 1024;  // a queue pair of more inline data is refused

  // A message arrives from the worker that has this queue pair at the master.
  void message(std::uint32_t queue_pair, const Header& header, const std::string& body = {});

  // The requests of a queue pair that have not completed, oldest first.
  std::deque<Posted>& posted(std::uint32_t queue_pair) { return queues_[queue_pair].posted; }
  // The oldest is done, and returned. It makes a completion if it has asked for one, or has failed. A READ copies
  // what lies at its address.
  Posted complete(std::uint32_t queue_pair, ibv_wc_status status = IBV_WC_SUCCESS);
  // Called behind each post to a connection.
  std::function<void(std::uint32_t queue_pair)> on_send;
  // The peer of this connection is gone: requests that are posted to it fail.
  std::uint32_t dead = 0;
  bool alive(std::uint32_t queue_pair) const { return queues_.count(queue_pair) != 0; }
  // Requests of all queues that will make a completion, and how many completions have room.
  std::size_t under_way() const;
  std::size_t room() const;

  struct Queue {
    std::uint32_t depth = 0;
    std::deque<Posted> posted;
    std::size_t untold = 0;  // done without a completion: they hold their places until the next one
    bool asks_always = false;
  };
  struct Receive {
    std::uint64_t id = 0;
    ibv_sge piece{};
  };
  bool datagram(const void* message, std::uint32_t bytes);

  std::unordered_map<std::uint32_t, Queue> queues_;
  std::deque<Receive> datagrams_, shared_;
  std::deque<ibv_wc> completions_;
  std::uint32_t next_queue_pair_ = 0;
};

}  // namespace shadowib::masterworker
