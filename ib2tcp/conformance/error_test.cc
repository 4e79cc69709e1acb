// Requests that one side must not or cannot execute: which statuses, events and states both sides see.
#include <gtest/gtest.h>

#include <utility>

#include "ib2tcp/conformance/half_in.h"

namespace shadowib::ib2tcp::testing {
namespace {

TEST_P(Conformance, RemoteAccessErrors) {
  enum Case { kKey, kBounds, kRight, kDomain, kQpRight, kReadRight, kAtomicRight, kCases };
  for (int c = 0; c < kCases; ++c) {
    QpOptions options;
    if (c == kQpRight) options.access = IBV_ACCESS_LOCAL_WRITE;
    Endpoint x(a()), y(b(), options);
    connect(x, y);
    ibv_pd* other = y.ops.alloc_pd(y.device.context);
    int access = c == kReadRight ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
                                 : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
    ibv_mr* mr =
        y.ops.reg_mr(c == kDomain ? other : y.pd, y.at(0), 4096, y.address(0), c == kDomain ? kAllAccess : access);
    std::uint32_t rkey = c == kKey                                        ? y.mr->rkey + 12345
                         : c == kRight || c >= kReadRight || c == kDomain ? mr->rkey
                                                                          : y.mr->rkey;
    std::uint64_t raddr = c == kBounds ? y.address(y.memory.size()) - 4 : (y.address(0) + 7) & ~7ull;
    ASSERT_EQ(y.post_recv(77, {y.sge(0, 8)}), 0);
    if (c == kReadRight) {
      ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_READ, {x.sge(0, 8)}, raddr, rkey), 0);
    } else if (c == kAtomicRight) {
      ASSERT_EQ(x.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(0, 8)}, raddr, rkey, 1, 1), 0);
    } else {
      // The responder checks the queue pair's right even if nothing is written.
      ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, c == kQpRight ? 0 : 8)}, raddr, rkey), 0);
    }
    ASSERT_EQ(x.post_send(2, {x.sge(0, 8)}), 0);
    EXPECT_WC(x.wait(), 1, IBV_WC_REM_ACCESS_ERR) << " case " << c;
    EXPECT_WC(x.wait(), 2, IBV_WC_WR_FLUSH_ERR);
    EXPECT_WC(y.wait(), 77, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(y.state(), IBV_QPS_ERR);
    ibv_async_event event{};
    bool seen = false;
    while (y.ops.get_async_event(y.device.context, &event) == 0)
      seen |= event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == y.qp;
    EXPECT_TRUE(seen) << "case " << c;
    EXPECT_EQ(y.ops.dereg_mr(mr), 0);
    EXPECT_EQ(y.ops.dealloc_pd(other), 0);
  }
}

TEST_P(Conformance, LengthAndLocalErrors) {
  {
    Endpoint x(a()), y(b());
    connect(x, y);
    ASSERT_EQ(y.post_recv(5, {y.sge(0, 10)}), 0);
    ASSERT_EQ(x.post_send(1, {x.sge(0, 11)}), 0);
    EXPECT_WC(y.wait(), 5, IBV_WC_LOC_LEN_ERR);
    EXPECT_WC(x.wait(), 1, IBV_WC_REM_INV_REQ_ERR);
  }
  {
    Endpoint x(a()), y(b());
    connect(x, y);
    ibv_sge wrong = y.sge(0, 100);
    wrong.lkey ^= 0x10000;
    ASSERT_EQ(y.post_recv(5, {wrong}), 0);
    ASSERT_EQ(x.post_send(1, {x.sge(0, 11)}), 0);
    EXPECT_WC(y.wait(), 5, IBV_WC_LOC_PROT_ERR);
    EXPECT_WC(x.wait(), 1, IBV_WC_REM_OP_ERR);
  }
  {
    Endpoint x(a()), y(b());
    connect(x, y);
    ASSERT_EQ(y.post_recv(5, {y.sge(0, 100)}), 0);
    ASSERT_EQ(x.post_send(1, {x.sge(0, 11)}), 0);
    ASSERT_EQ(x.post_send(2, {x.sge(x.memory.size() - 5, 11)}), 0);
    ASSERT_EQ(x.post_send(3, {x.sge(0, 11)}), 0);
    EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), 2, IBV_WC_LOC_PROT_ERR);
    EXPECT_WC(x.wait(), 3, IBV_WC_WR_FLUSH_ERR);
    EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
  }
  {
    QpOptions options;
    options.rd_atomic = 0;
    Endpoint x(a(), options), y(b());
    connect(x, y);
    ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_READ, {x.sge(0, 4)}, y.address(0), y.mr->rkey), 0);
    EXPECT_WC(x.wait(), 1, IBV_WC_LOC_QP_OP_ERR);
  }
}

// The acknowledgement that it carries ends the queue pair that it is for.
TEST_P(Conformance, ARequestThatEndsItsReceiverIsRefused) {
  Endpoint x(a()), y(b());
  connect(x, y);
  ASSERT_EQ(x.post_recv(6, {x.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(0, {}), 0);  // brings the connection up
  ASSERT_EQ(y.post_recv(5, {}), 0);
  EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 0, IBV_WC_SUCCESS);
  x.process.stop_helper();
  if (&x.process != &y.process) y.process.stop_helper();
  ibv_sge wrong = y.sge(0, 100);
  wrong.lkey ^= 0x10000;
  ASSERT_EQ(y.post_send(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(y.post_send(2, {wrong}), 0);  // fails as soon as the one before is acknowledged
  EXPECT_WC(x.wait(), 6, IBV_WC_SUCCESS);
  ASSERT_EQ(x.post_send(3, {}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 2, IBV_WC_LOC_PROT_ERR);
  x.process.start_helper();
  if (&x.process != &y.process) y.process.start_helper();
  EXPECT_WC(x.wait(), 3, IBV_WC_RETRY_EXC_ERR);
}

// Its receiver has seen the beginning, and ends before the rest is there.
TEST_P(Conformance, ARequestThatIsCutEnds) {
  QpOptions unreliable;
  unreliable.type = IBV_QPT_UC;
  for (const QpOptions& options : {QpOptions{}, unreliable})
    for (ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_SEND})
      for (ibv_qp_state end : {IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_UNKNOWN}) {
        SCOPED_TRACE(::testing::Message() << "type " << options.type << " opcode " << opcode << " end " << end);
        HalfIn message(a(), b(), opcode, options);
        if (end != IBV_QPS_UNKNOWN) {
          ASSERT_EQ(message.y.to_state(end), 0);
        } else {
          ASSERT_EQ(message.y.ops.destroy_qp(std::exchange(message.y.qp, nullptr)), 0);
        }
        message.go_on();
        EXPECT_WC(message.x.wait(), 1, options.type == IBV_QPT_UC ? IBV_WC_SUCCESS : IBV_WC_RETRY_EXC_ERR);
      }
}

// A READ that has been executed, or an atomic, whose answer waits behind the large one of another.
class AnswerWaits : public HalfIn {
 public:
  AnswerWaits(Device& a, Device& b, bool is_atomic)
      : HalfIn(a, b, IBV_WR_RDMA_READ), mr(y.ops.reg_mr(y.pd, counter_, sizeof(counter_), address(), kAllAccess)) {
    const std::vector<ibv_sge> list{x.sge(0, sizeof(std::uint64_t))};  // as much of the first READ is there
    if (is_atomic) {
      EXPECT_EQ(x.post_atomic(2, IBV_WR_ATOMIC_FETCH_AND_ADD, list, address(), mr->rkey, 1, 0), 0);
    } else {
      EXPECT_EQ(x.post_rdma(2, IBV_WR_RDMA_READ, list, address(), mr->rkey), 0);
    }
    for (int i = 0; i < 20; ++i) y.ops.progress(0);
  }
  ~AnswerWaits() {
    if (mr != nullptr) take_back();
  }
  void take_back() { EXPECT_EQ(y.ops.dereg_mr(std::exchange(mr, nullptr)), 0); }

 private:
  std::uint64_t counter_[1] = {5};
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(counter_); }

 public:
  ibv_mr* mr;  // of the second
};

TEST_P(Conformance, TheMemoryOfAnAnswerThatWaitsGoes) {
  AnswerWaits reads(a(), b(), false);
  reads.take_back();
  reads.go_on();
  EXPECT_WC(reads.x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(reads.x.wait(), 2, IBV_WC_REM_ACCESS_ERR);
}

TEST_P(Conformance, TheQueuePairOfAnAnswerThatWaitsEnds) {
  for (bool is_atomic : {false, true})
    for (ibv_qp_state end : {IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_UNKNOWN}) {
      SCOPED_TRACE(::testing::Message() << (is_atomic ? "atomic" : "READ") << ", end " << end);
      AnswerWaits waits(a(), b(), is_atomic);
      if (end != IBV_QPS_UNKNOWN) {
        ASSERT_EQ(waits.y.to_state(end), 0);
      } else {
        ASSERT_EQ(waits.y.ops.destroy_qp(std::exchange(waits.y.qp, nullptr)), 0);
      }
      waits.go_on();
      EXPECT_WC(waits.x.wait(), 1, IBV_WC_SUCCESS);
      EXPECT_WC(waits.x.wait(), 2, IBV_WC_RETRY_EXC_ERR);
    }
}

TEST_P(Conformance, MoreReadsThanTheResponderAllows) {
  QpOptions options;
  options.rd_atomic = 4;
  options.dest_rd_atomic = 0;
  Endpoint x(a(), options), y(b(), options);
  connect(x, y);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_READ, {x.sge(0, 20)}, y.address(0), y.mr->rkey), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_REM_INV_REQ_ERR);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
