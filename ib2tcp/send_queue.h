// Send requests from posting to completion.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <new>

#include "ib2tcp/wire.h"

namespace shadowib::ib2tcp {

// One posted request. Followed in memory by its scatter/gather list or its inline data.
struct Send {
  std::uint64_t wr_id;
  std::uint64_t raddr, operand1, operand2;
  std::uint32_t rkey, imm, length;
  std::uint32_t srqn;  // XRC
  std::uint16_t sges;
  Opcode opcode;
  std::uint8_t send_flags_solicited : 1, signaled : 1, fence : 1, inlined : 1;
  std::uint8_t done : 1;  // the response is in local memory
  ibv_wc_status status;   // not success: failed before it was sent
  std::uint64_t left;     // for another cluster, without an entry in the log: when it left (border.h)

  // Takes the program's flags; nothing is done yet.
  void mark(unsigned flags, bool signal_all) {
    send_flags_solicited = (flags & IBV_SEND_SOLICITED) != 0;
    signaled = signal_all || (flags & IBV_SEND_SIGNALED) != 0;
    fence = (flags & IBV_SEND_FENCE) != 0;
    inlined = (flags & IBV_SEND_INLINE) != 0;
    done = 0;
  }

  ibv_sge* sge() { return reinterpret_cast<ibv_sge*>(this + 1); }
  char* data() { return reinterpret_cast<char*>(this + 1); }
};

// A ring of requests and how far each has got; under the engine's lock. Indices grow for ever (index & mask is
// the slot): head <= acked <= next <= sent <= tail.
struct SendQueue {
  std::uint64_t head = 0;   // oldest without a completion
  std::uint64_t acked = 0;  // executed by the peer before this one
  std::uint64_t next = 0;   // to be handed to the stream next; goes back after a NAK
  std::uint64_t sent = 0;   // the furthest `next` has been
  std::uint64_t tail = 0;   // next to be posted

  bool init(std::uint32_t depth, std::uint32_t max_sge, std::uint32_t max_inline) {
    depth_ = depth;
    mask_ = std::bit_ceil(std::max(depth, 1u)) - 1;
    stride_ = (sizeof(Send) + std::max<std::size_t>(max_sge * sizeof(ibv_sge), max_inline) + 15) & ~std::size_t{15};
    slots_.reset(new (std::nothrow) char[stride_ * (mask_ + 1)]);
    return slots_ != nullptr;
  }
  Send& at(std::uint64_t index) { return *reinterpret_cast<Send*>(slots_.get() + (index & mask_) * stride_); }
  bool full() const { return tail - head >= depth_; }
  bool empty() const { return head == tail; }
  std::uint32_t depth() const { return depth_; }
  void clear() { head = acked = next = sent = tail = 0; }

 private:
  std::unique_ptr<char[]> slots_;
  std::uint64_t mask_ = 0;
  std::size_t stride_ = 0;
  std::uint32_t depth_ = 0;
};

}  // namespace shadowib::ib2tcp
