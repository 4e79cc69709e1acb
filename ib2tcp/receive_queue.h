// Receive requests in posting order. A queue pair refers to one and does not assume that it is its only user, so
// that a shared receive queue can be the same object with several users.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <new>

namespace shadowib::ib2tcp {

struct Receive {
  std::uint64_t wr_id;
  int sges;
  ibv_sge sge[];  // up to the queue's max_sge
};

// A ring of requests; under the engine's lock. begin() lends the oldest to an arriving message; it stays in the
// queue (and counts against its capacity) until finish(), or is there again after give_back().
class ReceiveQueue {
 public:
  // Both at least 0. False: no memory.
  bool init(std::uint32_t depth, std::uint32_t max_sge) {
    stride_ = sizeof(Receive) + max_sge * sizeof(ibv_sge);
    depth_ = depth;
    mask_ = std::bit_ceil(std::max(depth, 1u)) - 1;
    max_sge_ = max_sge;
    slots_.reset(new (std::nothrow) char[stride_ * (mask_ + 1)]);
    return slots_ != nullptr;
  }
  std::uint32_t depth() const { return depth_; }
  std::uint32_t max_sge() const { return max_sge_; }
  bool full() const { return tail_ - head_ >= depth_; }
  std::uint32_t size() const { return static_cast<std::uint32_t>(tail_ - head_); }

  void push(const ibv_recv_wr& wr) {
    Receive& slot = at(tail_++);
    slot.wr_id = wr.wr_id;
    slot.sges = wr.num_sge;
    for (int i = 0; i < wr.num_sge; ++i) slot.sge[i] = wr.sg_list[i];
  }

  bool available() const { return tail_ - head_ > (lent_ ? 1u : 0u); }
  Receive* begin() {
    if (lent_ || head_ == tail_) return nullptr;
    lent_ = true;
    return &at(head_);
  }
  void finish(Receive*) {
    lent_ = false;
    ++head_;
  }
  void give_back(Receive*) { lent_ = false; }
  // Takes the oldest out, for flushing; nullptr if none. Valid until the next push.
  Receive* pop() {
    lent_ = false;
    return head_ == tail_ ? nullptr : &at(head_++);
  }
  void clear() {
    lent_ = false;
    head_ = tail_;
  }

 private:
  Receive& at(std::uint64_t index) { return *reinterpret_cast<Receive*>(slots_.get() + (index & mask_) * stride_); }
  std::unique_ptr<char[]> slots_;
  std::size_t stride_ = 0;
  std::uint64_t head_ = 0, tail_ = 0, mask_ = 0;
  std::uint32_t depth_ = 0, max_sge_ = 0;
  bool lent_ = false;
};

}  // namespace shadowib::ib2tcp
