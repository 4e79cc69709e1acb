// Ports that members of one host claim.
#include "shadowib/cm/listeners.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "hooks/job/current_job.h"
#include "hooks/job/protocol.h"

namespace shadowib::cm {
namespace {

class Ports : public testing::Test {
 protected:
  static constexpr std::uint16_t kPort = 18515;
  void SetUp() override {
    char name[] = "/tmp/shadowib-ports-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    ASSERT_TRUE(Exchange::open("dir:" + directory_ + "/x", true, &exchange_).ok());
    g_job.exchange = exchange_.get();
    std::strcpy(g_job.info.directory, name);
    std::strcpy(g_job.info.job, "demo");
    std::strcpy(g_job.info.epoch, "g1-test");
  }
  void TearDown() override {
    g_job.exchange = nullptr;
    g_job.info = {};
    exchange_.reset();
    std::filesystem::remove_all(directory_);
  }

  std::string directory_;
  std::unique_ptr<Exchange> exchange_;
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
