// Ports that members of one host claim.
#include "shadowib/cm/listeners.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>

#include "shadowib/cr/tests/member_fixture.h"

namespace shadowib::cm {
namespace {

class Ports : public MemberTest {
 protected:
  static constexpr std::uint16_t kPort = 18515;
};

TEST_F(Ports, AreHeldOnce) {
  EXPECT_EQ(claim_port(RDMA_PS_TCP, kPort), 0);
  EXPECT_EQ(claim_port(RDMA_PS_TCP, kPort), EADDRINUSE);
  EXPECT_EQ(claim_port(RDMA_PS_UDP, kPort), 0);
  release_port(RDMA_PS_TCP, kPort);
  EXPECT_EQ(claim_port(RDMA_PS_TCP, kPort), 0);
}

// A cluster goes back alone: the epoch is the same, and so are its members' claims.
TEST_F(Ports, AreStillHeldByWhoComesBack) {
  EXPECT_EQ(claim_port_again(RDMA_PS_TCP, kPort), 0);
  EXPECT_EQ(claim_port_again(RDMA_PS_TCP, kPort), 0);
  EXPECT_EQ(claim_port(RDMA_PS_TCP, kPort), EADDRINUSE) << "another id of the member";
}

}  // namespace
}  // namespace shadowib::cm
