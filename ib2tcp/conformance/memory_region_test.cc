// Registering memory: its rules, its addresses, and taking it back.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

TEST_P(Conformance, RegistrationRules) {
  Endpoint x(a());
  auto reg = [&](void* address, std::size_t bytes, int access) {
    ibv_mr* mr = x.ops.reg_mr(x.pd, address, bytes, reinterpret_cast<std::uint64_t>(address), access);
    if (mr == nullptr) return x.process.last_errno();
    EXPECT_EQ(x.ops.dereg_mr(mr), 0);
    return 0;
  };
  EXPECT_EQ(reg(x.at(0), 10, IBV_ACCESS_REMOTE_WRITE), EINVAL);
  EXPECT_EQ(reg(x.at(0), 10, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
  EXPECT_EQ(reg(x.at(0), 10, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
  EXPECT_EQ(reg(x.at(0), 10, IBV_ACCESS_RELAXED_ORDERING | 1), 0);
  EXPECT_EQ(reg(x.at(0), 0, 1), 0);
  EXPECT_EQ(reg(reinterpret_cast<void*>(4096), 100, 1), EFAULT);
}

TEST_P(Conformance, IovaIsTheAddressOthersUse) {
  Endpoint x(a()), y(b());
  connect(x, y);
  ibv_mr* mr = y.ops.reg_mr(y.pd, y.at(128), 100, 0x1000, kAllAccess);
  std::strcpy(x.at(0), "iova");
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, 5)}, 0x1000 + 95, mr->rkey), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_STREQ(y.at(128 + 95), "iova");
  EXPECT_EQ(y.ops.dereg_mr(mr), 0);
}

TEST_P(Conformance, DeregisteringCutsMessagesLoose) {
  Endpoint x(a()), y(b());
  connect(x, y);
  ibv_mr* mr = y.ops.reg_mr(y.pd, y.at(0), 1 << 20, y.address(0), kAllAccess);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, 1 << 20)}, y.address(0), mr->rkey), 0);
  ASSERT_EQ(y.ops.dereg_mr(mr), 0);
  ibv_wc wc = x.wait();
  EXPECT_TRUE(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_REM_ACCESS_ERR) << wc.status;
}

// The sockets of `process` hold some mebibyte each from now on. A system may let them grow beyond half of a large
// message, and they grow while their reader is slow.
void keep_sockets_small(Process& process) {
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

  HalfIn(Device& a, Device& b, ibv_wr_opcode opcode)
      : opcode_(opcode), x(a, {}, kBytes), y(b, {}, kBytes), from(reads() ? y : x), to(reads() ? x : y) {
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

TEST_P(Conformance, DeregisteringAnotherRegionOfTheSameMemoryDisturbsNothing) {
  for (ibv_wr_opcode opcode : HalfIn::kOpcodes) {
    SCOPED_TRACE("opcode " + std::to_string(opcode));
    HalfIn message(a(), b(), opcode);
    message.deregister(message.cover);
    if (opcode == IBV_WR_RDMA_WRITE) message.deregister(message.second);
    message.expect_complete();
  }
}

TEST_P(Conformance, DeregisteringARegionCutsTheMessageIntoIt) {
  for (ibv_wr_opcode opcode : HalfIn::kOpcodes)
    for (bool later : {false, true}) {
      if (later && opcode == IBV_WR_RDMA_WRITE) continue;  // it has one region
      SCOPED_TRACE("opcode " + std::to_string(opcode) + (later ? ", the second region" : ", the first region"));
      HalfIn message(a(), b(), opcode);
      message.deregister(later ? message.second : message.first);
      message.expect_cut();
    }
}

// Memory, domain and rights of a region change under its key.
TEST_P(Conformance, ARegionIsRegisteredAgain) {
  Endpoint x(a()), y(b());
  connect(x, y);
  std::vector<char> other(8192, 'o');
  std::memcpy(x.at(0), "again", 5);
  const std::uint32_t key = y.mr->rkey;
  const auto at = reinterpret_cast<std::uint64_t>(other.data());
  ASSERT_EQ(y.ops.rereg_mr(y.mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, other.data(), 4096, 0), 0);
  EXPECT_EQ(y.mr->addr, other.data());
  EXPECT_EQ(y.mr->rkey, key) << "ours keeps its keys";
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, 5)}, at + 4091, key), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(other.data() + 4091, 6), "againo");
  EXPECT_EQ(y.ops.rereg_mr(y.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_WRITE), EINVAL);
  EXPECT_EQ(y.ops.rereg_mr(y.mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, reinterpret_cast<void*>(16), 4096, 0),
            EFAULT);
  ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_WRITE, {x.sge(0, 5)}, at, key), 0);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS) << "what was refused changed nothing";
  ibv_pd* pd = y.ops.alloc_pd(y.device.context);
  ASSERT_EQ(y.ops.rereg_mr(y.mr, IBV_REREG_MR_CHANGE_PD, pd, nullptr, 0, 0), 0);
  EXPECT_EQ(y.ops.dealloc_pd(pd), EBUSY);
  ASSERT_EQ(x.post_rdma(3, IBV_WR_RDMA_WRITE, {x.sge(0, 5)}, at, key), 0);
  EXPECT_WC(x.wait(), 3, IBV_WC_REM_ACCESS_ERR);
  ASSERT_EQ(y.ops.rereg_mr(y.mr, IBV_REREG_MR_CHANGE_PD, y.pd, nullptr, 0, 0), 0);
  EXPECT_EQ(y.ops.dealloc_pd(pd), 0);
  ibv_async_event event;
  while (y.ops.get_async_event(y.device.context, &event) == 0) y.ops.ack_async_event(&event);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
