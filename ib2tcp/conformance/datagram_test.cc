// Unreliable datagrams: addresses, headers, what is dropped, and that senders always hear the end of it.
#include <endian.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

constexpr std::uint32_t kGrhBytes = 40;

struct Datagrams {
  Endpoint x, y;
  ibv_ah* to_y;
  static QpOptions options(bool global = false, ibv_srq* srq = nullptr) {
    QpOptions o;
    o.type = IBV_QPT_UD;
    o.global = global;
    o.srq = srq;
    return o;
  }
  Datagrams(Device& a, Device& b, bool global = false) : x(a, options(global)), y(b, options(global)) {
    start(x);
    start(y);
    to_y = x.make_ah(b);
  }
  ~Datagrams() { EXPECT_EQ(x.ops.destroy_ah(to_y), 0); }
  static void start(Endpoint& e) {
    ASSERT_EQ(e.to_init(e.qp), 0);
    ASSERT_EQ(e.to_rtr(e.qp, e.device, 0), 0);
    ASSERT_EQ(e.to_rts(e.qp), 0);
  }
  int send(std::uint64_t id, std::size_t offset, std::uint32_t length, ibv_wr_opcode opcode = IBV_WR_SEND,
           unsigned flags = 0) {
    return x.post_datagram(id, {x.sge(offset, length)}, to_y, y.qp->qp_num, y.options.qkey, opcode, flags);
  }
};

TEST_P(Conformance, ADatagramNamesItsSender) {
  Datagrams d(a(), b());
  std::memset(d.y.at(0), 'z', 100);
  ASSERT_EQ(d.y.post_recv(10, {d.y.sge(0, 2000)}), 0);
  ASSERT_EQ(d.y.post_recv(11, {d.y.sge(4000, 30), d.y.sge(5000, 11), d.y.sge(6000, 100)}), 0);
  std::memcpy(d.x.at(0), "hello", 5);
  ASSERT_EQ(d.send(1, 0, 5), 0);
  EXPECT_WC(d.x.wait(), 1, IBV_WC_SUCCESS);
  ibv_wc wc = d.y.wait();
  EXPECT_WC(wc, 10, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_RECV);
  EXPECT_EQ(wc.byte_len, kGrhBytes + 5);
  EXPECT_EQ(wc.src_qp, d.x.qp->qp_num);
  EXPECT_EQ(wc.qp_num, d.y.qp->qp_num);
  EXPECT_EQ(wc.slid, d.x.device.port.lid);
  EXPECT_EQ(wc.wc_flags, 0u);
  EXPECT_EQ(std::string(d.y.at(kGrhBytes), 6), "helloz");
  ASSERT_EQ(d.send(2, 0, 5, IBV_WR_SEND_WITH_IMM, IBV_SEND_INLINE), 0);
  EXPECT_WC(d.x.wait(), 2, IBV_WC_SUCCESS);
  wc = d.y.wait();
  EXPECT_WC(wc, 11, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_WITH_IMM));
  EXPECT_EQ(wc.imm_data, 0x01020304u);
  EXPECT_EQ(*d.y.at(5010), 'h') << "the payload begins behind the first 40 bytes of the list";
  EXPECT_EQ(std::string(d.y.at(6000), 4), "ello");
}

// The first of a process: a connection is yet to be made, and nobody waits for it.
TEST_P(Conformance, ADatagramLeavesBeforeItsQueuePairIsDestroyed) {
  Datagrams d(a(), b());
  Endpoint leaver(a(), Datagrams::options());
  Datagrams::start(leaver);
  ASSERT_EQ(d.y.post_recv(10, {d.y.sge(0, 2000)}), 0);
  ASSERT_EQ(leaver.post_datagram(1, {leaver.sge(0, 5)}, d.to_y, d.y.qp->qp_num, d.y.options.qkey, IBV_WR_SEND, 0), 0);
  ASSERT_EQ(leaver.ops.destroy_qp(leaver.qp), 0);
  leaver.qp = nullptr;
  EXPECT_WC(d.y.wait(), 10, IBV_WC_SUCCESS);
}

TEST_P(Conformance, AGlobalRouteHeaderIsInFrontOfTheDatagram) {
  Datagrams d(a(), b(), true);
  ASSERT_EQ(d.y.post_recv(10, {d.y.sge(0, 2000)}), 0);
  ASSERT_EQ(d.send(1, 0, 100), 0);
  EXPECT_WC(d.x.wait(), 1, IBV_WC_SUCCESS);
  const ibv_wc wc = d.y.wait();
  EXPECT_WC(wc, 10, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wc_flags, static_cast<unsigned>(IBV_WC_GRH));
  ibv_grh grh;
  std::memcpy(&grh, d.y.at(0), sizeof(grh));
  EXPECT_EQ(be32toh(grh.version_tclass_flow), 0x6ab12345u);
  EXPECT_EQ(grh.hop_limit, 9);
  EXPECT_EQ(grh.next_hdr, 0x1b);
  EXPECT_EQ(std::memcmp(&grh.sgid, &d.x.device.gid, 16), 0);
  EXPECT_EQ(std::memcmp(&grh.dgid, &d.y.device.gid, 16), 0);
}

// Whatever becomes of it, its sender's request is over, in order, and what comes later is delivered.
TEST_P(Conformance, WhatCannotBeDeliveredIsDropped) {
  Datagrams d(a(), b());
  ibv_ah_attr nobody{};
  nobody.port_num = 1;
  nobody.dlid = static_cast<std::uint16_t>(d.y.device.port.lid % 0xbffe + 1);
  ibv_ah* to_nobody = d.x.ops.create_ah(d.x.pd, &nobody);
  ASSERT_EQ(d.y.post_recv(10, {d.y.sge(0, 2000)}), 0);
  const std::uint32_t number = d.y.qp->qp_num, key = d.y.options.qkey;
  ASSERT_EQ(d.x.post_datagram(1, {d.x.sge(0, 8)}, d.to_y, number, key ^ 1), 0);
  ASSERT_EQ(d.x.post_datagram(2, {d.x.sge(0, 8)}, d.to_y, number ^ 0x800000, key), 0);
  ASSERT_EQ(d.x.post_datagram(3, {d.x.sge(0, 8)}, to_nobody, number, key), 0);
  ASSERT_EQ(d.x.post_datagram(4, {d.x.sge(0, 8)}, d.to_y, number, key), 0);
  ASSERT_EQ(d.x.post_datagram(5, {d.x.sge(0, 8)}, d.to_y, number, key), 0);  // no receive is left
  EXPECT_EQ(d.x.ops.destroy_ah(to_nobody), 0) << "requests may outlive it";
  for (std::uint64_t id = 1; id <= 5; ++id) EXPECT_WC(d.x.wait(), id, IBV_WC_SUCCESS);
  EXPECT_WC(d.y.wait(), 10, IBV_WC_SUCCESS);
  EXPECT_EQ(d.y.poll(), 0);
  EXPECT_EQ(d.x.ops.sq_executed(d.x.qp), 5u);
  // A key with the highest bit set stands for the sender's own.
  ASSERT_EQ(d.y.post_recv(11, {d.y.sge(0, 2000)}), 0);
  ASSERT_EQ(d.x.post_datagram(6, {d.x.sge(0, 8)}, d.to_y, number, 0x80000000), 0);
  EXPECT_WC(d.x.wait(), 6, IBV_WC_SUCCESS);
  EXPECT_WC(d.y.wait(), 11, IBV_WC_SUCCESS);
}

// What a peer says of datagrams from before a reset is not taken for those after it.
TEST_P(Conformance, DatagramsGoOnAfterAReset) {
  Datagrams d(a(), b());
  for (std::uint64_t round = 0; round < 50; ++round) {
    for (std::uint64_t i = 0; i < 10; ++i) {
      ASSERT_EQ(d.y.post_recv(10 * round + i, {d.y.sge(0, 200)}), 0);
      ASSERT_EQ(d.send(10 * round + i, 0, 64), 0);
    }
    const std::uint64_t executed = d.x.ops.sq_executed(d.x.qp);
    ASSERT_EQ(d.x.to_state(IBV_QPS_RESET), 0);
    Datagrams::start(d.x);
    while (d.x.poll() == 1) continue;
    ASSERT_EQ(d.send(7000 + round, 0, 64), 0);
    ASSERT_EQ(d.y.post_recv(9000 + round, {d.y.sge(0, 200)}), 0);
    ASSERT_EQ(d.x.wait().wr_id, 7000 + round);
    ASSERT_GT(d.x.ops.sq_executed(d.x.qp), executed);
    ASSERT_EQ(d.y.to_state(IBV_QPS_RESET), 0);  // whatever came of the others
    Datagrams::start(d.y);
  }
}

// Each of them would else wait its half second, and a checkpoint for them all.
TEST_P(Conformance, AQueueOfDatagramsToNobodyRunsEmpty) {
  Datagrams d(a(), b());
  ibv_ah_attr nobody{};
  nobody.port_num = 1;
  nobody.dlid = static_cast<std::uint16_t>(d.y.device.port.lid % 0xbffe + 1);
  ibv_ah* ah = d.x.ops.create_ah(d.x.pd, &nobody);
  auto send = [&](std::uint64_t first, std::uint64_t count) {
    const auto start = std::chrono::steady_clock::now();
    for (std::uint64_t id = first; id < first + count; ++id)
      EXPECT_EQ(d.x.post_datagram(id, {d.x.sge(0, 8)}, ah, 1, 1), 0);
    for (std::uint64_t id = first; id < first + count; ++id) EXPECT_WC(d.x.wait(), id, IBV_WC_SUCCESS);
    return std::chrono::steady_clock::now() - start;
  };
  const auto one = send(0, 1);
  EXPECT_LT(send(1, 50), 25 * one);
  EXPECT_EQ(d.x.ops.destroy_ah(ah), 0);
}

TEST_P(Conformance, DatagramsFitIntoAPacket) {
  Datagrams d(a(), b());
  ASSERT_EQ(d.y.post_recv(10, {d.y.sge(0, kGrhBytes + 4096)}), 0);
  ASSERT_EQ(d.y.post_recv(11, {d.y.sge(0, kGrhBytes + 99)}), 0);
  for (std::size_t i = 0; i < 4096; ++i) *d.x.at(i) = static_cast<char>(i * 7);
  ASSERT_EQ(d.send(1, 0, 4096), 0);
  EXPECT_WC(d.x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(d.y.wait(), 10, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(d.x.at(0), d.y.at(kGrhBytes), 4096), 0);
  ASSERT_EQ(d.send(2, 0, 100), 0);
  EXPECT_WC(d.x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(d.y.wait(), 11, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(d.y.state(), IBV_QPS_ERR);
  ASSERT_EQ(d.send(3, 0, 4097), 0);
  EXPECT_WC(d.x.wait(), 3, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(d.x.state(), IBV_QPS_ERR);
  ibv_async_event event;
  while (d.y.ops.get_async_event(d.y.device.context, &event) == 0) d.y.ops.ack_async_event(&event);
}

TEST_P(Conformance, OneSendsToManyAndManyToOne) {
  constexpr int kRounds = 200;
  Datagrams d(a(), b());
  Endpoint z(a(), Datagrams::options());
  Datagrams::start(z);
  ibv_ah* to_z = d.x.make_ah(a());
  ibv_ah* from_z = z.make_ah(b());
  std::uint64_t at_y = 0, at_z = 0, of_x = 0, of_z = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < 4; ++i) ASSERT_EQ(d.y.post_recv(at_y + static_cast<unsigned>(i), {d.y.sge(0, 200)}), 0);
    ASSERT_EQ(z.post_recv(at_z, {z.sge(0, 200)}), 0);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(d.send(of_x++, 0, 64), 0);
      ASSERT_EQ(z.post_datagram(of_z + static_cast<unsigned>(i), {z.sge(500, 64)}, from_z, d.y.qp->qp_num,
                                d.y.options.qkey),
                0);
    }
    ASSERT_EQ(d.x.post_datagram(of_x++, {d.x.sge(0, 64)}, to_z, z.qp->qp_num, z.options.qkey), 0);
    for (int i = 0; i < 3; ++i) ASSERT_EQ(d.x.wait().wr_id, of_x - 3 + static_cast<unsigned>(i));
    int received = 0;
    for (int sent = 0; received < 1 || sent < 2;) {  // z's queue holds both kinds
      const ibv_wc wc = z.wait();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      const bool receive = (wc.opcode & IBV_WC_RECV) != 0;
      ASSERT_EQ(wc.wr_id, receive ? at_z++ : of_z++);
      ++(receive ? received : sent);
    }
    int from_x = 0;
    for (int i = 0; i < 4; ++i) {
      const ibv_wc wc = d.y.wait();
      ASSERT_EQ(wc.wr_id, at_y++);
      from_x += wc.src_qp == d.x.qp->qp_num;
    }
    ASSERT_EQ(from_x, 2);
  }
  EXPECT_EQ(d.x.ops.destroy_ah(to_z), 0);
  EXPECT_EQ(z.ops.destroy_ah(from_z), 0);
}

TEST_P(Conformance, ManyDatagramsInFlight) {
  constexpr std::uint64_t kMessages = 5000, kWindow = 60;
  Datagrams d(a(), b());
  std::uint64_t posted = 0, sent = 0, completed = 0, received = 0;
  while (received < kMessages) {
    while (posted < kMessages && posted < received + kWindow)
      ASSERT_EQ(d.y.post_recv(posted++, {d.y.sge(0, 200)}), 0);
    while (sent < posted && sent < completed + kWindow) {
      ASSERT_EQ(d.send(sent, 0, 100), 0);
      ++sent;
    }
    ibv_wc wc;
    while (d.x.ops.poll_cq(d.x.cq, 1, &wc) == 1) ASSERT_EQ(wc.wr_id, completed++);
    if (sent > received) {
      ASSERT_EQ(d.y.wait().wr_id, received++);
    }
  }
  while (completed < kMessages) ASSERT_EQ(d.x.wait().wr_id, completed++);
}

TEST_P(Conformance, DatagramsTakeSharedReceives) {
  ibv_srq_init_attr init{};
  init.attr = {4, 1, 0};
  Endpoint owner(b());
  ibv_srq* srq = owner.ops.create_srq(owner.pd, &init);
  {
    Endpoint x(a(), Datagrams::options()), y(b(), Datagrams::options(false, srq));
    Datagrams::start(x);
    Datagrams::start(y);
    ibv_ah* ah = x.make_ah(b());
    ibv_sge sge = owner.sge(0, 200);
    ibv_recv_wr wr{7, nullptr, &sge, 1}, *bad = nullptr;
    ASSERT_EQ(owner.ops.post_srq_recv(srq, &wr, &bad), 0);
    ASSERT_EQ(x.post_datagram(1, {x.sge(0, 9)}, ah, y.qp->qp_num, y.options.qkey), 0);
    EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
    EXPECT_WC(y.wait(), 7, IBV_WC_SUCCESS);
    EXPECT_EQ(x.ops.destroy_ah(ah), 0);
  }
  EXPECT_EQ(owner.ops.destroy_srq(srq), 0);
}

TEST_P(Conformance, DatagramQueuePairsKeepTheirRules) {
  Datagrams d(a(), b());
  EXPECT_EQ(d.x.post_rdma(1, IBV_WR_RDMA_WRITE, {d.x.sge(0, 8)}, 0, 0), EINVAL);
  EXPECT_EQ(d.x.post_datagram(1, {d.x.sge(0, 8)}, nullptr, 1, 1), EINVAL);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTS;
  attr.qp_access_flags = 1;
  EXPECT_EQ(d.x.ops.modify_qp(d.x.qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS), EINVAL);
  attr.qkey = 0x2222;
  EXPECT_EQ(d.y.ops.modify_qp(d.y.qp, &attr, IBV_QP_STATE | IBV_QP_QKEY), 0);
  ibv_qp_init_attr init{};
  ASSERT_EQ(d.y.ops.query_qp(d.y.qp, &attr, IBV_QP_QKEY, &init), 0);
  EXPECT_EQ(attr.qkey, 0x2222u);
  EXPECT_EQ(init.qp_type, IBV_QPT_UD);
  ASSERT_EQ(d.y.post_recv(10, {d.y.sge(0, 200)}), 0);
  ASSERT_EQ(d.x.post_datagram(1, {d.x.sge(0, 8)}, d.to_y, d.y.qp->qp_num, 0x2222), 0);
  EXPECT_WC(d.x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(d.y.wait(), 10, IBV_WC_SUCCESS);
  ibv_ah_attr wrong{};
  EXPECT_EQ(d.x.ops.create_ah(d.x.pd, &wrong), nullptr);
  EXPECT_EQ(d.x.process.last_errno(), EINVAL);
  // A queue pair that is held keeps what is posted.
  ASSERT_EQ(d.x.to_state(IBV_QPS_SQD), 0);
  ASSERT_EQ(d.y.post_recv(11, {d.y.sge(0, 200)}), 0);
  ASSERT_EQ(d.x.post_datagram(2, {d.x.sge(0, 8)}, d.to_y, d.y.qp->qp_num, 0x2222), 0);
  EXPECT_EQ(d.x.poll(), 0);
  ASSERT_EQ(d.x.to_state(IBV_QPS_RTS), 0);
  EXPECT_WC(d.x.wait(), 2, IBV_WC_SUCCESS);
  EXPECT_WC(d.y.wait(), 11, IBV_WC_SUCCESS);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
