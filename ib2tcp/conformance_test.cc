// Verbs semantics of ib2tcp, the same over every transport.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <random>
#include <string>

#include "ib2tcp/testing/endpoint.h"
#include "ib2tcp/testing/process.h"

namespace shadowib::ib2tcp::testing {
namespace {

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  Conformance() : exchange_(std::make_shared<FakeExchange>()) {
    ProcessOptions options;
    bool self = GetParam() == "self";
    options.transport = self ? "auto" : GetParam();
    first_ = std::make_unique<Process>(exchange_, options);
    if (!self) second_ = std::make_unique<Process>(exchange_, options);
    device_a_ = std::make_unique<Device>(*first_);
    device_b_ = std::make_unique<Device>(self ? *first_ : *second_);
  }
  Device& a() { return *device_a_; }
  Device& b() { return *device_b_; }

  std::shared_ptr<FakeExchange> exchange_;
  std::unique_ptr<Process> first_, second_;
  std::unique_ptr<Device> device_a_, device_b_;
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

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::Values("self", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shadowib::ib2tcp::testing
