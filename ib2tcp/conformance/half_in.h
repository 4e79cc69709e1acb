// A large message that is stopped on its way.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {

// The sockets of `process` hold some mebibyte each from now on. A system may let them grow beyond half of a large
// message, and they grow while their reader is slow.
inline void keep_sockets_small(Process& process) {
  const int bytes = 1 << 19;
  std::lock_guard<std::mutex> guard(process.mutex_);
  for (const int fd : process.descriptors_)  // others refuse it
    for (const int buffer : {SO_RCVBUF, SO_SNDBUF}) ::setsockopt(fd, SOL_SOCKET, buffer, &bytes, sizeof(bytes));
}

// A large message stopped on its way: into two regions, the halves of the receiver's memory, with a third over both.
// WRITE has one region, SEND and READ have a list of both. Whichever goes, the message is in its first half.
class HalfIn {
 public:
  static constexpr std::uint32_t kBytes = 32 << 20;  // more than any transport holds
  static constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ};

  HalfIn(Device& a, Device& b, ibv_wr_opcode opcode, const QpOptions& options = {})
      : opcode_(opcode), x(a, options, kBytes), y(b, options, kBytes), from(reads() ? y : x), to(reads() ? x : y) {
    const std::uint32_t half = kBytes / 2;
    first = region(0, opcode == IBV_WR_RDMA_WRITE ? kBytes : half);
    second = region(half, half);
    cover = region(0, kBytes);
    connect(x, y);
    EXPECT_EQ(y.post_recv(5, {}), 0);
    EXPECT_EQ(x.post_send(0, {}), 0);  // brings the connection up
    EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), 0, IBV_WC_SUCCESS);
    x.process.stop_helper();
    y.process.stop_helper();
    keep_sockets_small(x.process);
    keep_sockets_small(y.process);
    std::memset(from.at(0), 'h', kBytes);
    const std::vector<ibv_sge> list{{to.address(0), half, first->lkey}, {to.address(half), half, second->lkey}};
    if (opcode == IBV_WR_SEND) {
      EXPECT_EQ(y.post_recv(6, list), 0);
      EXPECT_EQ(x.post_send(1, {x.sge(0, kBytes)}), 0);
    } else if (reads()) {
      EXPECT_EQ(x.post_rdma(1, opcode, list, y.address(0), y.mr->rkey), 0);
    } else {
      EXPECT_EQ(x.post_rdma(1, opcode, {x.sge(0, kBytes)}, y.address(0), first->rkey), 0);
    }
    while (to.at(0)[0] == 0) {
      from.ops.progress(0);
      if (to.at(0)[0] == 0) to.ops.progress(0);
    }
    EXPECT_EQ(to.at(half - 1)[0], 0) << "the message is to be in its first half";
  }
  ~HalfIn() {
    go_on();
    for (ibv_mr* mr : {first, second, cover})
      if (mr != nullptr) {
        EXPECT_EQ(to.ops.dereg_mr(mr), 0);
      }
  }

  void deregister(ibv_mr*& mr) {
    EXPECT_EQ(to.ops.dereg_mr(mr), 0);
    mr = nullptr;
  }
  void go_on() {
    if (going_) return;
    going_ = true;
    x.process.start_helper();
    if (&x.process != &y.process) y.process.start_helper();
  }
  void expect_complete() {
    go_on();
    EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
    if (opcode_ == IBV_WR_SEND) {
      EXPECT_WC(y.wait(), 6, IBV_WC_SUCCESS);
    }
    EXPECT_EQ(fingerprint(to.at(0), kBytes), fingerprint(from.at(0), kBytes));
  }
  void expect_cut() {
    const std::uint64_t then = fingerprint(to.at(0), kBytes);
    go_on();
    const ibv_wc_status remote = opcode_ == IBV_WR_SEND ? IBV_WC_REM_OP_ERR : IBV_WC_REM_ACCESS_ERR;
    EXPECT_WC(x.wait(), 1, reads() ? IBV_WC_LOC_PROT_ERR : remote);
    if (opcode_ == IBV_WR_SEND) {
      EXPECT_WC(y.wait(), 6, IBV_WC_LOC_PROT_ERR);
    }
    EXPECT_EQ(fingerprint(to.at(0), kBytes), then) << "written to after it was taken back";
  }

 private:
  ibv_wr_opcode opcode_;
  bool going_ = false;
  bool reads() const { return opcode_ == IBV_WR_RDMA_READ; }
  ibv_mr* region(std::size_t offset, std::size_t bytes) {
    return to.ops.reg_mr(to.pd, to.at(offset), bytes, to.address(offset), kAllAccess);
  }

 public:
  Endpoint x, y;
  Endpoint &from, &to;
  ibv_mr *first, *second, *cover;  // of `to`
};

}  // namespace shadowib::ib2tcp::testing
