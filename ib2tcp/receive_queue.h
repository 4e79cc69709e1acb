// Receive requests in posting order. A queue pair has one of its own, or shares one with others (Srq): nothing here
// assumes a single user.
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <new>

namespace shadowib::ib2tcp {

struct Receive {
  std::uint64_t wr_id;
  std::uint32_t slot;
  int sges;
  ibv_sge sge[];  // up to the queue's max_sge
};

// Requests wait in a ring, oldest first. begin() lends the oldest to an arriving message; it counts against the
// capacity until finish(), or is the oldest again after give_back(). Several may be lent at a time and come back in
// any order. Under the engine's lock.
class ReceiveQueue {
 public:
  // Both at least 0. False: no memory.
  bool init(std::uint32_t depth, std::uint32_t max_sge) {
    stride_ = sizeof(Receive) + max_sge * sizeof(ibv_sge);
    depth_ = depth;
    mask_ = std::bit_ceil(std::max(depth, 1u)) - 1;
    max_sge_ = max_sge;
    slots_.reset(new (std::nothrow) char[stride_ * std::max(depth, 1u)]);
    waiting_.reset(new (std::nothrow) std::uint32_t[mask_ + 1]);
    free_.reset(new (std::nothrow) std::uint32_t[mask_ + 1]);
    if (slots_ == nullptr || waiting_ == nullptr || free_ == nullptr) return false;
    clear();
    return true;
  }
  std::uint32_t depth() const { return depth_; }
  std::uint32_t max_sge() const { return max_sge_; }
  std::uint32_t size() const { return depth_ - free_count_; }  // lent ones included
  std::uint32_t waiting() const { return static_cast<std::uint32_t>(tail_ - head_); }
  bool available() const { return head_ != tail_; }

  // 0, EINVAL (too many elements) or ENOMEM (full).
  int post(const ibv_recv_wr& wr) {
    if (wr.num_sge < 0 || static_cast<unsigned>(wr.num_sge) > max_sge_) return EINVAL;
    if (free_count_ == 0) return ENOMEM;
    const std::uint32_t slot = free_[--free_count_];
    Receive& receive = at(slot);
    receive.wr_id = wr.wr_id;
    receive.slot = slot;
    receive.sges = wr.num_sge;
    for (int i = 0; i < wr.num_sge; ++i) receive.sge[i] = wr.sg_list[i];
    waiting_[tail_++ & mask_] = slot;
    return 0;
  }

  Receive* begin() { return available() ? &at(waiting_[head_++ & mask_]) : nullptr; }
  void finish(Receive* receive) { free_[free_count_++] = receive->slot; }
  void give_back(Receive* receive) { waiting_[--head_ & mask_] = receive->slot; }
  // Takes the oldest out, for flushing; nullptr if none. Valid until the next push.
  Receive* pop() {
    Receive* receive = begin();
    if (receive != nullptr) finish(receive);
    return receive;
  }
  // Forgets all, lent ones too.
  void clear() {
    head_ = tail_ = 0;
    free_count_ = depth_;
    for (std::uint32_t i = 0; i < depth_; ++i) free_[i] = depth_ - 1 - i;
  }

 private:
  Receive& at(std::uint32_t slot) { return *reinterpret_cast<Receive*>(slots_.get() + slot * stride_); }
  std::unique_ptr<char[]> slots_;
  std::unique_ptr<std::uint32_t[]> waiting_, free_;
  std::size_t stride_ = 0;
  std::uint64_t head_ = 0, tail_ = 0, mask_ = 0;
  std::uint32_t depth_ = 0, max_sge_ = 0, free_count_ = 0;
};

}  // namespace shadowib::ib2tcp
