// Verbs semantics of ib2tcp, the same over every transport.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>

#include "ib2tcp/testing/endpoint.h"
#include "ib2tcp/testing/process.h"

namespace shadowib::ib2tcp::testing {
namespace {

// Two processes (one for self) that last for all tests of a transport: each test leaves nothing behind in them.
struct World {
  explicit World(const std::string& transport) : exchange(std::make_shared<FakeExchange>()) {
    ProcessOptions options;
    bool self = transport == "self";
    options.transport = self ? "auto" : transport;
    first = std::make_unique<Process>(exchange, options);
    if (!self) second = std::make_unique<Process>(exchange, options);
    a = std::make_unique<Device>(*first);
    b = std::make_unique<Device>(self ? *first : *second);
  }
  std::shared_ptr<FakeExchange> exchange;
  std::unique_ptr<Process> first, second;
  std::unique_ptr<Device> a, b;
};

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  Conformance() {
    static std::map<std::string, std::unique_ptr<World>> worlds;
    std::unique_ptr<World>& world = worlds[GetParam()];
    if (world == nullptr) world = std::make_unique<World>(GetParam());
    world_ = world.get();
  }
  Device& a() { return *world_->a; }
  Device& b() { return *world_->b; }
  World* world_;
};

TEST_P(Conformance, SendReachesTheReceive) {
  Endpoint x(a()), y(b());
  connect(x, y);
  ASSERT_EQ(y.post_recv(100, {y.sge(0, 1000)}), 0);
  std::strcpy(x.at(0), "hello");
  ASSERT_EQ(x.post_send(1, {x.sge(0, 6)}), 0);
  ibv_wc wc = y.wait();
  EXPECT_WC(wc, 100, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 6u);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.qp_num, y.qp->qp_num);
  EXPECT_STREQ(y.at(0), "hello");
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_EQ(x.ops.sq_executed(x.qp), 1u);
}

TEST_P(Conformance, GlobalAddressWithoutLid) {
  QpOptions options;
  options.global = true;
  Endpoint x(a(), options), y(b(), options);
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 8)}), 0);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 8)}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
}

TEST_P(Conformance, SizesAndScatterGather) {
  Endpoint x(a()), y(b());
  connect(x, y);
  std::mt19937 random(1);
  for (std::uint32_t size : {0u, 1u, 63u, 64u, 511u, 512u, 513u, 4096u, 4097u, 16384u, 65536u, 1000000u}) {
    std::generate_n(x.at(0), size + 64, [&] { return static_cast<char>(random()); });
    std::memset(y.at(0), 0, size + 64);
    std::uint32_t third = size / 3;
    ASSERT_EQ(y.post_recv(size, {y.sge(7, third + 1), y.sge(third + 8, 0), y.sge(third + 8, size)}), 0);
    ASSERT_EQ(x.post_send(size, {x.sge(0, third), x.sge(third, third), x.sge(2 * third, size - 2 * third)}), 0);
    ibv_wc wc = y.wait();
    EXPECT_WC(wc, size, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.byte_len, size);
    EXPECT_EQ(std::memcmp(x.at(0), y.at(7), size), 0) << size;
    EXPECT_EQ(y.at(7)[size], 0) << "written behind the message of " << size;
    EXPECT_WC(x.wait(), size, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(y.post_recv(1, {}), 0);
  ASSERT_EQ(x.post_send(2, {}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
}

TEST_P(Conformance, ImmediateInlineAndUnsignaled) {
  QpOptions options;
  options.signal_all = false;
  Endpoint x(a(), options), y(b(), options);
  connect(x, y);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(y.post_recv(static_cast<std::uint64_t>(i), {y.sge(100u * i, 100)}), 0);
  std::strcpy(x.at(0), "inline");
  std::vector<ibv_sge> list{x.sge(0, 7)};
  list[0].lkey = 0;  // not looked at
  ASSERT_EQ(x.post_send(1, list, IBV_SEND_INLINE), 0);
  std::memset(x.at(0), 'x', 7);
  std::vector<ibv_sge> none;
  ibv_send_wr wr = x.send_wr(2, IBV_WR_SEND_WITH_IMM, none);
  wr.imm_data = 0x01020304;
  ASSERT_EQ(x.post(wr), 0);
  ASSERT_EQ(x.post_send(3, {x.sge(0, 7)}, IBV_SEND_SIGNALED), 0);
  EXPECT_WC(y.wait(), 0, IBV_WC_SUCCESS);
  EXPECT_STREQ(y.at(0), "inline");
  ibv_wc wc = y.wait();
  EXPECT_WC(wc, 1, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(wc.imm_data, 0x01020304u);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 3, IBV_WC_SUCCESS);
  EXPECT_EQ(x.poll(), 0) << "only the signaled request completes";
  EXPECT_EQ(x.ops.sq_executed(x.qp), 3u);
}

TEST_P(Conformance, WriteReadAndWriteWithImmediate) {
  Endpoint x(a()), y(b());
  connect(x, y);
  for (std::uint32_t size : {0u, 5u, 600u, 5000u, 300000u}) {
    std::memset(x.at(0), static_cast<int>(size % 251 + 1), size);
    ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE, {x.sge(0, size)}, y.address(64), y.mr->rkey), 0);
    EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
    y.ops.progress(0);  // the target takes no completion: this is what orders its reading, for ThreadSanitizer
    EXPECT_EQ(std::memcmp(x.at(0), y.at(64), size), 0);
    ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_READ, {x.sge(1000000, size / 2), x.sge(2000000, size - size / 2)},
                          y.address(64), y.mr->rkey),
              0);
    ibv_wc wc = x.wait();
    EXPECT_WC(wc, 2, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);
    EXPECT_EQ(wc.byte_len, size);
    EXPECT_EQ(std::memcmp(x.at(0), x.at(1000000), size / 2), 0);
    EXPECT_EQ(std::memcmp(x.at(0), x.at(2000000), size - size / 2), 0);
    ASSERT_EQ(y.post_recv(3, {}), 0);
    ASSERT_EQ(x.post_rdma(4, IBV_WR_RDMA_WRITE_WITH_IMM, {x.sge(0, size)}, y.address(500000), y.mr->rkey), 0);
    wc = y.wait();
    EXPECT_WC(wc, 3, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(wc.byte_len, size);
    EXPECT_WC(x.wait(), 4, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(x.at(0), y.at(500000), size), 0);
  }
  EXPECT_EQ(y.poll(), 0);
}

TEST_P(Conformance, Atomics) {
  Endpoint x(a()), y(b());
  connect(x, y);
  auto* target = reinterpret_cast<std::uint64_t*>((y.address(0) + 63) & ~63ull);
  auto raddr = reinterpret_cast<std::uint64_t>(target);
  *target = 40;
  std::uint64_t got = 0;
  ASSERT_EQ(x.post_atomic(1, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(0, 8)}, raddr, y.mr->rkey, 2, 0), 0);
  ibv_wc wc = x.wait();
  EXPECT_WC(wc, 1, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(wc.byte_len, 8u);
  std::memcpy(&got, x.at(0), 8);
  EXPECT_EQ(got, 40u);
  EXPECT_EQ(*target, 42u);
  ASSERT_EQ(x.post_atomic(2, IBV_WR_ATOMIC_CMP_AND_SWP, {x.sge(8, 8)}, raddr, y.mr->rkey, 41, 7), 0);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(*target, 42u);
  ASSERT_EQ(x.post_atomic(3, IBV_WR_ATOMIC_CMP_AND_SWP, {x.sge(8, 8)}, raddr, y.mr->rkey, 42, 7), 0);
  EXPECT_WC(x.wait(), 3, IBV_WC_SUCCESS);
  std::memcpy(&got, x.at(8), 8);
  EXPECT_EQ(got, 42u);
  EXPECT_EQ(*target, 7u);
  ASSERT_EQ(x.post_atomic(4, IBV_WR_ATOMIC_FETCH_AND_ADD, {x.sge(0, 8)}, raddr + 4, y.mr->rkey, 1, 0), 0);
  EXPECT_WC(x.wait(), 4, IBV_WC_REM_INV_REQ_ERR);
}

TEST_P(Conformance, ManyReadsKeepTheLimitAndTheOrder) {
  QpOptions options;
  options.rd_atomic = 2;
  options.dest_rd_atomic = 2;
  Endpoint x(a(), options), y(b(), options);
  connect(x, y);
  for (int i = 0; i < 1000; ++i) y.at(0)[i] = static_cast<char>(i);
  for (std::uint32_t i = 0; i < 50; ++i)
    ASSERT_EQ(x.post_rdma(i, IBV_WR_RDMA_READ, {x.sge(i * 20, 20)}, y.address(i * 20), y.mr->rkey,
                          i % 5 == 0 ? IBV_SEND_FENCE : 0),
              0);
  for (std::uint32_t i = 0; i < 50; ++i) EXPECT_WC(x.wait(), i, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(x.at(0), y.at(0), 1000), 0);
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

TEST_P(Conformance, ReceiverNotReadyHoldsEverythingBack) {
  Endpoint x(a()), y(b());
  connect(x, y);
  std::memset(x.at(0), 'n', 100);
  ASSERT_EQ(x.post_rdma(1, IBV_WR_RDMA_WRITE_WITH_IMM, {x.sge(0, 100)}, y.address(0), y.mr->rkey), 0);
  ASSERT_EQ(x.post_rdma(2, IBV_WR_RDMA_WRITE, {x.sge(0, 100)}, y.address(200), y.mr->rkey), 0);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(x.poll(), 0);
    EXPECT_EQ(y.poll(), 0);
  }
  EXPECT_EQ(y.at(0)[0], 0) << "a write with immediate must wait for the receive";
  EXPECT_EQ(y.at(200)[0], 0) << "what is behind it must wait too";
  EXPECT_EQ(x.ops.sq_executed(x.qp), 0u);
  ASSERT_EQ(y.post_recv(9, {}), 0);
  EXPECT_WC(y.wait(), 9, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(y.at(0)[99], 'n');
  EXPECT_EQ(y.at(200)[99], 'n');
}

TEST_P(Conformance, OtherQueuePairsGoOnPastOneThatIsNotReady) {
  Endpoint x(a()), y(b()), v(a()), w(b());
  connect(x, y);
  connect(v, w);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100000)}), 0);
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(w.post_recv(i, {w.sge(0, 100)}), 0);
    ASSERT_EQ(v.post_send(i, {v.sge(0, 100)}), 0);
    EXPECT_WC(w.wait(), i, IBV_WC_SUCCESS);
    EXPECT_WC(v.wait(), i, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(y.post_recv(5, {y.sge(0, 100000)}), 0);
  EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
}

TEST_P(Conformance, RnrRetriesRunOut) {
  QpOptions options;
  options.rnr_retry = 2;
  Endpoint x(a(), options), y(b(), options);
  connect(x, y);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_WC(x.wait(), 2, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(x.state(), IBV_QPS_ERR);
  EXPECT_EQ(y.state(), IBV_QPS_RTS);
}

// A figure of a side's own statistics.
long figure(Endpoint& endpoint, const std::string& name) {
  char text[2048] = {};
  endpoint.ops.describe(text, sizeof(text));
  const std::string quoted = "\"" + name + "\": ";
  const char* at = std::strstr(text, quoted.c_str());
  return at != nullptr ? std::atol(at + quoted.size()) : -1;
}
// How often it has refused a request for want of a receive.
long refusals(Endpoint& endpoint) { return figure(endpoint, "rnr_naks"); }

// A timer that was disarmed left its deadline behind, and the helper never slept again.
TEST_P(Conformance, TheHelperSleepsOnceNothingIsDue) {
  Endpoint x(a()), y(b());
  connect(x, y);
  const long before = refusals(y);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  while (refusals(y) == before) {
    x.ops.progress(0);
    y.ops.progress(0);
  }
  ASSERT_EQ(y.post_recv(5, {y.sge(0, 10)}), 0);  // ends the sender's wait before its time
  EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  // Asleep: hardly a turn in 20 ms. Spinning makes thousands, for good.
  auto asleep = [](Endpoint& side) {
    const long turns = figure(side, "helper_turns");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return figure(side, "helper_turns") - turns < 20;
  };
  for (Endpoint* side : {&x, &y}) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    bool quiet = false;
    while (!(quiet = asleep(*side)) && std::chrono::steady_clock::now() < end) {
    }
    EXPECT_TRUE(quiet);
  }
}

// The sender's helper alone repeats what a timer or a new connection set going: its program computes.
TEST_P(Conformance, ALateReceiverIsServedWhileTheSenderComputes) {
  QpOptions options;
  options.signal_all = 0;
  Endpoint x(a(), options), y(b(), options);
  connect(x, y);
  for (int round = 0; round < 3000; ++round) {
    int rc;
    while ((rc = x.post_send(1, {x.sge(0, 10)})) == ENOMEM) std::this_thread::yield();  // not all acknowledged yet
    ASSERT_EQ(rc, 0);
    const auto late = std::chrono::steady_clock::now() + std::chrono::microseconds(round * 37 % 211);
    while (std::chrono::steady_clock::now() < late) {
    }
    ASSERT_EQ(y.post_recv(5, {y.sge(0, 10)}), 0);
    const ibv_wc wc = y.wait();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << "round " << round;
  }
}

// Finite retries must not run out because a checkpoint stopped the receiver (DESIGN.md; the retries of this test last
// 30 us, the pause is over only after many times that).
TEST_P(Conformance, APausedReceiverUsesUpNoRetries) {
  for (bool sender_paused : {false, true}) {
    QpOptions options;
    options.rnr_retry = 2;
    Endpoint x(a(), options), y(b(), options);
    connect(x, y);
    const BackendOps& stopped = sender_paused ? x.ops : y.ops;
    stopped.set_paused(1);
    const long before = refusals(y);
    ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
    // Twenty refusals are ten times what the request may take.
    while (refusals(y) < before + 20) {
      ASSERT_EQ(x.state(), IBV_QPS_RTS);
      x.ops.progress(0);
      y.ops.progress(0);
    }
    ASSERT_EQ(x.state(), IBV_QPS_RTS);
    ASSERT_EQ(y.post_recv(5, {y.sge(0, 10)}), 0);
    EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
    stopped.set_paused(0);
  }
}

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

TEST_P(Conformance, NoSuchPeer) {
  Endpoint x(a()), y(b());
  // A queue pair that does not exist, a LID nobody has, a sequence that does not fit.
  ASSERT_EQ(x.to_init(x.qp), 0);
  ASSERT_EQ(x.to_rtr(x.qp, y.device, 0xabcdef), 0);
  ASSERT_EQ(x.to_rts(x.qp), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_RETRY_EXC_ERR);

  Endpoint v(a());
  Device nowhere = v.device;
  nowhere.port.lid = static_cast<std::uint16_t>(v.device.port.lid % 1000 + 3);
  ASSERT_EQ(v.to_init(v.qp), 0);
  ASSERT_EQ(v.to_rtr(v.qp, nowhere, 5), 0);
  ASSERT_EQ(v.to_rts(v.qp), 0);
  ASSERT_EQ(v.post_send(2, {v.sge(0, 10)}), 0);
  EXPECT_WC(v.wait(), 2, IBV_WC_RETRY_EXC_ERR);

  QpOptions other;
  other.psn = 99;
  Endpoint s(a()), t(b(), other);
  connect(s, t);
  ASSERT_EQ(t.post_recv(1, {t.sge(0, 10)}), 0);
  ASSERT_EQ(s.post_send(3, {s.sge(0, 10)}), 0);
  EXPECT_WC(s.wait(), 3, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(t.poll(), 0);
}

TEST_P(Conformance, PeerThatComesLaterIsWaitedFor) {
  QpOptions options;
  options.timeout = 14;
  options.retry_cnt = 7;
  Endpoint x(a(), options), y(b(), options);
  ASSERT_EQ(x.to_init(x.qp), 0);
  ASSERT_EQ(x.to_rtr(x.qp, y.device, y.qp->qp_num), 0);
  ASSERT_EQ(x.to_rts(x.qp), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 10)}), 0);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 10)}), 0);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(x.poll(), 0);
  ASSERT_EQ(y.to_init(y.qp), 0);
  ASSERT_EQ(y.post_recv(7, {y.sge(0, 10)}), 0);
  ASSERT_EQ(y.post_recv(8, {y.sge(0, 10)}), 0);
  ASSERT_EQ(y.to_rtr(y.qp, x.device, x.qp->qp_num), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 7, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 8, IBV_WC_SUCCESS);
  ibv_async_event event{};
  ASSERT_EQ(y.ops.get_async_event(y.device.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_COMM_EST);
}

TEST_P(Conformance, StateMachineAndDestroyRules) {
  Endpoint x(a()), y(b());
  ibv_send_wr* bad_send = nullptr;
  ibv_recv_wr* bad_recv = nullptr;
  ibv_send_wr send{};
  ibv_recv_wr recv{};
  EXPECT_EQ(x.ops.post_recv(x.qp, &recv, &bad_recv), EINVAL);
  EXPECT_EQ(bad_recv, &recv);
  EXPECT_EQ(x.to_state(IBV_QPS_RTS), EINVAL);
  EXPECT_EQ(x.to_state(IBV_QPS_INIT), EINVAL) << "attributes are missing";
  ASSERT_EQ(x.to_init(x.qp), 0);
  EXPECT_EQ(x.ops.post_send(x.qp, &send, &bad_send), EINVAL);
  EXPECT_EQ(bad_send, &send);
  EXPECT_EQ(x.to_rts(x.qp), EINVAL);
  ASSERT_EQ(x.post_recv(4, {x.sge(0, 1)}), 0);
  ASSERT_EQ(x.to_rtr(x.qp, y.device, y.qp->qp_num), 0);
  EXPECT_EQ(x.ops.post_send(x.qp, &send, &bad_send), EINVAL);
  ASSERT_EQ(x.to_rts(x.qp), 0);
  EXPECT_EQ(x.to_state(IBV_QPS_RTR), EINVAL);
  EXPECT_EQ(x.ops.destroy_cq(x.cq), EBUSY);
  EXPECT_EQ(x.ops.dealloc_pd(x.pd), EBUSY);
  EXPECT_EQ(x.ops.destroy_comp_channel(x.channel), EBUSY);
  EXPECT_EQ(x.ops.close_device(x.device.context), EBUSY);
  ASSERT_EQ(x.to_state(IBV_QPS_ERR), 0);
  EXPECT_WC(x.wait(), 4, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(x.post_send(5, {}), 0);
  ASSERT_EQ(x.post_recv(6, {}), 0);
  EXPECT_WC(x.wait(), 5, IBV_WC_WR_FLUSH_ERR);
  EXPECT_WC(x.wait(), 6, IBV_WC_WR_FLUSH_ERR);
  ASSERT_EQ(x.to_state(IBV_QPS_RESET), 0);
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {}), 0);
  ASSERT_EQ(x.post_send(2, {}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
}

TEST_P(Conformance, FullQueuesAndBadRequests) {
  QpOptions options;
  options.send_wr = 3;
  options.recv_wr = 2;
  Endpoint x(a(), options), y(b(), options);
  connect(x, y);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(x.post_send(static_cast<std::uint64_t>(i), {x.sge(0, 10)}), 0);
  EXPECT_EQ(x.post_send(3, {x.sge(0, 10)}), ENOMEM);
  ASSERT_EQ(x.post_recv(1, {}), 0);
  ASSERT_EQ(x.post_recv(1, {}), 0);
  EXPECT_EQ(x.post_recv(1, {}), ENOMEM);
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(y.post_recv(i, {y.sge(0, 10)}), 0);
    EXPECT_WC(x.wait(), i, IBV_WC_SUCCESS);
    EXPECT_WC(y.wait(), i, IBV_WC_SUCCESS);
  }
  std::vector<ibv_sge> five(5, x.sge(0, 1));
  EXPECT_EQ(x.post_send(1, five), EINVAL);
  EXPECT_EQ(x.post_send(1, {x.sge(0, 65)}, IBV_SEND_INLINE), EINVAL);
  std::vector<ibv_sge> one{x.sge(0, 1)};
  EXPECT_EQ(x.post(x.send_wr(1, IBV_WR_LOCAL_INV, one)), EOPNOTSUPP);
  // A list is taken up to the bad one.
  ibv_send_wr good = x.send_wr(7, IBV_WR_SEND, one), wrong = x.send_wr(8, IBV_WR_SEND, five);
  good.next = &wrong;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(x.ops.post_send(x.qp, &good, &bad), EINVAL);
  EXPECT_EQ(bad, &wrong);
  ASSERT_EQ(y.post_recv(9, {y.sge(0, 10)}), 0);
  EXPECT_WC(y.wait(), 9, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 7, IBV_WC_SUCCESS);
  ibv_qp_init_attr init = x.init_attr();
  init.cap.max_inline_data = 1025;
  EXPECT_EQ(x.ops.create_qp(x.pd, &init), nullptr);
  EXPECT_EQ(x.process.last_errno(), EINVAL);
  init = x.init_attr();
  init.qp_type = IBV_QPT_UD;
  EXPECT_EQ(x.ops.create_qp(x.pd, &init), nullptr);
  EXPECT_EQ(x.process.last_errno(), EOPNOTSUPP);
}

TEST_P(Conformance, SendQueueDrains) {
  Endpoint x(a()), y(b());
  connect(x, y);
  ASSERT_EQ(y.post_recv(0, {}), 0);
  ASSERT_EQ(x.post_send(0, {}), 0);  // the connection is up after this
  EXPECT_WC(y.wait(), 0, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 0, IBV_WC_SUCCESS);
  ASSERT_EQ(y.post_recv(1, {}), 0);
  ASSERT_EQ(x.post_send(1, {}), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_SQD;
  attr.en_sqd_async_notify = 1;
  ASSERT_EQ(x.ops.modify_qp(x.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
  ASSERT_EQ(x.post_send(2, {}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  pollfd drained{x.device.context->async_fd, POLLIN, 0};  // the event follows the completion
  ASSERT_EQ(::poll(&drained, 1, 10000), 1);
  ibv_async_event event{};
  ASSERT_EQ(x.ops.get_async_event(x.device.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
  ASSERT_EQ(y.post_recv(2, {}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(y.poll(), 0) << "a drained queue begins nothing";
  ASSERT_EQ(x.to_state(IBV_QPS_RTS), 0);
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(x.wait(), 2, IBV_WC_SUCCESS);
}

bool readable(int fd, int timeout_ms) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, timeout_ms) == 1;
}

TEST_P(Conformance, NotificationWakesASleeper) {
  Endpoint x(a()), y(b());
  connect(x, y);
  ibv_cq* cq = nullptr;
  EXPECT_EQ(y.ops.get_cq_event(y.channel, &cq), -1);
  EXPECT_EQ(y.process.last_errno(), EAGAIN);
  for (std::uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(y.post_recv(i, {y.sge(0, 100)}), 0);
    ASSERT_EQ(y.ops.req_notify_cq(y.cq, 0), 0);
    EXPECT_EQ(y.poll(), 0);
    ASSERT_EQ(x.post_send(i, {x.sge(0, 100)}), 0);
    ASSERT_TRUE(readable(y.channel->fd, 5000)) << i;
    ASSERT_EQ(y.ops.get_cq_event(y.channel, &cq), 0);
    EXPECT_EQ(cq, y.cq);
    y.ops.ack_cq_events(cq, 1);
    EXPECT_FALSE(readable(y.channel->fd, 0));
    EXPECT_WC(y.wait(), i, IBV_WC_SUCCESS);
    EXPECT_WC(x.wait(), i, IBV_WC_SUCCESS);
  }
  // Only for solicited ones, then.
  ASSERT_EQ(y.ops.req_notify_cq(y.cq, 1), 0);
  ASSERT_EQ(y.post_recv(1, {}), 0);
  ASSERT_EQ(y.post_recv(2, {}), 0);
  ASSERT_EQ(x.post_send(1, {}), 0);
  EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_FALSE(readable(y.channel->fd, 0));
  ASSERT_EQ(x.post_send(2, {}, IBV_SEND_SOLICITED), 0);
  EXPECT_TRUE(readable(y.channel->fd, 5000));
  EXPECT_WC(y.wait(), 2, IBV_WC_SUCCESS);
}

TEST_P(Conformance, OverrunIsAnErrorOfTheQueue) {
  Endpoint x(a()), y(b(), {}, 1 << 16, 4);
  connect(x, y);
  for (std::uint64_t i = 0; i < 6; ++i) ASSERT_EQ(y.post_recv(i, {}), 0);
  for (std::uint64_t i = 0; i < 6; ++i) ASSERT_EQ(x.post_send(i, {}), 0);
  ibv_async_event event{};
  bool cq_error = false, qp_fatal = false;
  for (int i = 0; i < 2000 && !(cq_error && qp_fatal); ++i) {
    y.process.ops().progress(0);
    x.poll();
    while (y.ops.get_async_event(y.device.context, &event) == 0) {
      cq_error |= event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == y.cq;
      qp_fatal |= event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == y.qp;
    }
  }
  EXPECT_TRUE(cq_error);
  EXPECT_TRUE(qp_fatal);
  EXPECT_EQ(y.state(), IBV_QPS_ERR);
}

TEST_P(Conformance, RemoteWritesProgressWhileTheTargetComputes) {
  Endpoint x(a()), y(b());
  connect(x, y);
  for (std::uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(x.post_rdma(i, IBV_WR_RDMA_WRITE, {x.sge(0, 1000)}, y.address(0), y.mr->rkey), 0);
    EXPECT_WC(x.wait(), i, IBV_WC_SUCCESS);
  }
}

TEST_P(Conformance, DestroyingAnswersThePeerFirst) {
  Endpoint x(a());
  {
    Endpoint y(b());
    connect(x, y);
    ASSERT_EQ(y.post_recv(1, {}), 0);
    ASSERT_EQ(x.post_send(1, {}), 0);
    EXPECT_WC(y.wait(), 1, IBV_WC_SUCCESS);
  }
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
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

TEST_P(Conformance, TwoThousandQueuePairsShareOneConnection) {
  Endpoint x(a(), {}, 1 << 16, 1 << 14), y(b(), {}, 1 << 16, 1 << 14);
  QpOptions small;
  small.send_wr = small.recv_wr = 2;
  small.sge = 1;
  small.inline_bytes = 0;
  x.options = y.options = small;
  std::size_t before;
  {
    std::lock_guard<std::mutex> guard(x.process.mutex_);
    before = x.process.descriptors_.size();
  }
  std::vector<ibv_qp*> left, right;
  ibv_qp *const own_x = x.qp, *const own_y = y.qp;
  for (int i = 0; i < 2000; ++i) {
    left.push_back(x.make_qp());
    right.push_back(y.make_qp());
    ASSERT_EQ(x.to_init(left[i]), 0);
    ASSERT_EQ(y.to_init(right[i]), 0);
    ASSERT_EQ(x.to_rtr(left[i], y.device, right[i]->qp_num), 0);
    ASSERT_EQ(y.to_rtr(right[i], x.device, left[i]->qp_num), 0);
    ASSERT_EQ(x.to_rts(left[i]), 0);
    ASSERT_EQ(y.to_rts(right[i]), 0);
    y.qp = right[i];
    ASSERT_EQ(y.post_recv(static_cast<std::uint64_t>(i), {y.sge(0, 16)}), 0);
  }
  for (int i = 0; i < 2000; ++i) {
    x.qp = left[i];
    ASSERT_EQ(x.post_send(static_cast<std::uint64_t>(i), {x.sge(0, 16)}), 0);
  }
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(x.wait().status, IBV_WC_SUCCESS);
    ASSERT_EQ(y.wait().status, IBV_WC_SUCCESS);
  }
  {
    std::lock_guard<std::mutex> guard(x.process.mutex_);
    EXPECT_LE(x.process.descriptors_.size(), before + 4);
  }
  for (int i = 0; i < 2000; ++i) {
    EXPECT_EQ(x.ops.destroy_qp(left[i]), 0);
    EXPECT_EQ(y.ops.destroy_qp(right[i]), 0);
  }
  x.qp = own_x;
  y.qp = own_y;
}

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::Values("self", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shadowib::ib2tcp::testing
