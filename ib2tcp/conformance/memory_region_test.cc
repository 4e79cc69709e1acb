// Registering memory: its rules, its addresses, and taking it back.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

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

}  // namespace
}  // namespace shadowib::ib2tcp::testing
