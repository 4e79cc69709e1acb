// An opened RDMA device with what both sides need: a protection domain, a completion queue that can be slept on,
// buffers.
//
// All memory that the adapter reaches is mapped here, apart from the heap: a child forked from a master must not
// share pages with requests under way (M13).
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <vector>

#include "libraries/masterworker/messages.h"
#include "libraries/masterworker/payload.h"
#include "libraries/masterworker/protocol.h"

namespace shadowib::masterworker {

std::int64_t now_ns();
// That time as of the kernel's last tick, up to 10 ms ago. It takes a quarter as long.
std::int64_t tick_ns();
std::uint64_t random_number();

// A registered buffer. Large ones are made for a message and kept for the next of its size.
struct Buffer {
  std::uint32_t id = 0;
  char* data = nullptr;
  std::size_t bytes = 0;
  ibv_mr* region = nullptr;
  std::uint32_t users = 0;   // messages that refer to it
  std::uint64_t update = 0;  // the update that it holds, while somebody uses it
};

// Receive slots that have been read. They go back to their queue many at a time: each post has a price of its own.
// The few that wait meanwhile are missing there.
class Emptied {
 public:
  static constexpr std::uint32_t kMost = 16;

  // One more, of `bytes` at `at` in `buffer`. True: so many wait that they must be posted().
  bool add(std::uint64_t id, const Buffer& buffer, const char* at, std::uint32_t bytes) {
    pieces_[count_] = {reinterpret_cast<std::uint64_t>(at), bytes, buffer.region->lkey};
    requests_[count_] = {id, nullptr, &pieces_[count_], 1};
    if (count_ != 0) requests_[count_ - 1].next = &requests_[count_];
    return ++count_ == kMost;
  }
  // A chain for one post, which takes all.
  ibv_recv_wr* post() {
    count_ = 0;
    return requests_;
  }

 private:
  ibv_recv_wr requests_[kMost];
  ibv_sge pieces_[kMost];
  std::uint32_t count_ = 0;
};

// Messages up to this length go inline where the device has room for so much: they need no buffer.
inline constexpr std::uint32_t kInlineBytes = 192;

class Adapter {
 public:
  // Opens the first device. Ends the process with a message if there is none.
  Adapter(int completions);
  ~Adapter();
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  // Registered memory of its own, for the adapter's life: `bytes` zeroes.
  Buffer map(std::size_t bytes, int access);

  // A buffer for large messages that peers may read, or that a READ fills. Back by put(), once for each user.
  Buffer& take(std::size_t bytes);
  void put(std::uint32_t id);
  Buffer* find(std::uint32_t id);

  Place place_of(std::uint32_t queue_pair) const;
  ibv_ah_attr route_to(const Place& place) const;

  // A reliable queue pair of so many requests. Its requests take two pieces, and make a completion only if they ask
  // for one. It takes kInlineBytes inline if the device can, and no less than `least_inline`: `init` says. Null:
  // there is none.
  ibv_qp* reliable(ibv_qp_init_attr& init, std::uint32_t least_inline) const;
  // Its states.
  void to_init(ibv_qp* qp, int access) const;
  void connect(ibv_qp* qp, const Place& there, std::uint32_t their_first, std::uint32_t our_first) const;
  // A datagram queue pair, ready to send.
  ibv_qp* datagrams(std::uint32_t key, int receives) const;

  // Makes the completion queue large enough for `entries`. False: the device has no such queue.
  bool make_room(int entries);
  // Completions, at most `most`. A broken queue ends the process.
  int poll(ibv_wc* completions, int most);
  // Before a sleep: arm, poll once more, and only then sleep.
  void arm();
  // Sleeps until there is a completion, `other` is readable, or `timeout_ms` have passed (-1: for ever). True if
  // `other` is.
  bool sleep(int timeout_ms, int other = -1);

  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_cq* queue = nullptr;

 private:
  ibv_comp_channel* channel_ = nullptr;
  std::uint16_t lid_ = 0;
  bool global_ = false;
  int gid_index_ = 0;
  union ibv_gid gid_ {};
  ibv_mtu mtu_ = IBV_MTU_1024;
  std::map<std::uint32_t, Buffer> buffers_;
  std::multimap<std::size_t, std::uint32_t> idle_;
  std::size_t idle_bytes_ = 0;
  std::uint32_t next_buffer_ = 0;
};

}  // namespace shadowib::masterworker
