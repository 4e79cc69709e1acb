// Registering memory: its rules, its addresses, and taking it back.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "ib2tcp/conformance/half_in.h"

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
