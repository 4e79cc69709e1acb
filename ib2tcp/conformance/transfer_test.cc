// Bytes and what completes for them: every opcode, every size, in order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "ib2tcp/conformance/fixture.h"

namespace shadowib::ib2tcp::testing {
namespace {

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

}  // namespace
}  // namespace shadowib::ib2tcp::testing
