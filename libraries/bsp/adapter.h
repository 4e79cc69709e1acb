// The objects of one RDMA device that a process of a BSP job uses, and how its queue pairs connect.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libraries/bsp/greeting.h"

namespace shadowib::bsp {

// Requests of one queue pair that may be under way.
inline constexpr std::uint32_t kSendDepth = 128;

class Adapter {
 public:
  // Opens the first device, or the one that SHADOWIB_BSP_DEVICE names, and makes a queue pair for each peer. Fails
  // the job if one cannot be made.
  Adapter(int process, int processes);

  // Fills in address and queue pairs.
  void describe(Greeting* greeting) const;
  // Connects the queue pair of that peer: it can then receive and send.
  void connect(int peer, const Greeting& greeting);

  // nullptr: cannot be registered, and errno tells why.
  ibv_mr* register_memory(const void* memory, std::size_t bytes, int access) const;

  ibv_qp* queue_pair(int peer) const { return queue_pairs_[peer]; }
  ibv_cq* completions() const { return cq_; }
  ibv_comp_channel* channel() const { return channel_; }
  ibv_srq* receives() const { return srq_; }
  std::uint32_t receive_depth() const { return receive_depth_; }

 private:
  void open_device();
  void choose_gid();
  void make_queues(int process, int processes);

  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  std::vector<ibv_qp*> queue_pairs_;
  ibv_port_attr port_{};
  ibv_gid gid_{};
  std::uint8_t gid_index_ = 0;
  std::uint32_t receive_depth_ = 0;
  std::uint8_t reads_ = 1;  // READs and atomics under way per queue pair
};

}  // namespace shadowib::bsp
