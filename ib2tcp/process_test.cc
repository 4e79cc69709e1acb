// A process of ib2tcp as a whole: what it is told by its settings, what it does without its exchange, and its death.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ib2tcp/testing/endpoint.h"

namespace shadowib::ib2tcp::testing {
namespace {

class Death : public ::testing::TestWithParam<std::string> {};

TEST_P(Death, OfThePeerEndsWhatIsOutstanding) {
  auto exchange = std::make_shared<FakeExchange>();
  ProcessOptions options;
  options.transport = GetParam();
  Process first(exchange, options);
  auto second = std::make_unique<Process>(exchange, options);
  Device a(first), b(*second);
  Endpoint x(a), idle(a);
  Endpoint y(b), idle_peer(b);
  y.abandoned = idle_peer.abandoned = true;
  connect(x, y);
  connect(idle, idle_peer);
  ASSERT_EQ(idle.post_recv(50, {}), 0);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  // No receive for these: they are under way when the peer dies.
  ASSERT_EQ(x.post_recv(9, {}), 0);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 1 << 20)}), 0);
  ASSERT_EQ(x.post_send(3, {x.sge(0, 100)}), 0);
  second->kill();
  EXPECT_WC(x.wait(), 2, IBV_WC_RETRY_EXC_ERR);
  EXPECT_WC(x.wait(), 3, IBV_WC_WR_FLUSH_ERR);
  EXPECT_WC(x.wait(), 9, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(x.state(), IBV_QPS_ERR);
  // One that was only waiting stays as it is, until it sends.
  EXPECT_EQ(idle.poll(), 0);
  EXPECT_EQ(idle.state(), IBV_QPS_RTS);
  ASSERT_EQ(idle.post_send(51, {}), 0);
  EXPECT_WC(idle.wait(), 51, IBV_WC_RETRY_EXC_ERR);
}

INSTANTIATE_TEST_SUITE_P(Transports, Death, ::testing::ValuesIn(kTransports),
                         [](const auto& info) { return name_in_test(info.param); });

TEST(Settings, UnknownTransportsAreRefusedByName) {
  for (const char* name : {"ofi", "carrier-pigeon"}) {
    ProcessOptions options;
    options.transport = name;
    Process process(std::make_shared<FakeExchange>(), options);
    int n = 0;
    ibv_device** list = process.ops().get_device_list(&n);
    ASSERT_NE(list, nullptr);
    // Twice: a failure leaves nothing half made.
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(process.ops().open_device(list[0]), nullptr);
      EXPECT_EQ(process.last_errno(), EINVAL);
    }
    process.ops().free_device_list(list);
    EXPECT_NE(process.log().find(name), std::string::npos);
  }
}

TEST(Settings, ProvidersThatAreNotThereAreRefusedAtOnce) {
  for (const char* name : {"ofi:", "ofi:no-such-provider"}) {
    ProcessOptions options;
    options.transport = name;
    options.helper = false;
    Process process(std::make_shared<FakeExchange>(), options);
    EXPECT_NE(process.entry_result(), 0) << name;
    EXPECT_NE(process.log().find(name), std::string::npos) << process.log();
  }
}

TEST(Settings, AnExchangeThatFailsLeavesNothingBehind) {
  ProcessOptions options;
  Process process(std::make_shared<FakeExchange>(), options);
  int n = 0;
  ibv_device** list = process.ops().get_device_list(&n);
  std::size_t before;
  {
    std::lock_guard<std::mutex> guard(process.mutex_);
    before = process.descriptors_.size();
  }
  process.exchange_broken_ = true;
  EXPECT_EQ(process.ops().open_device(list[0]), nullptr);
  EXPECT_EQ(process.last_errno(), EIO);
  {
    std::lock_guard<std::mutex> guard(process.mutex_);
    EXPECT_EQ(process.descriptors_.size(), before);
  }
  process.exchange_broken_ = false;
  ibv_context* context = process.ops().open_device(list[0]);
  ASSERT_NE(context, nullptr);
  EXPECT_EQ(process.ops().close_device(context), 0);
  process.ops().free_device_list(list);
}

long figure(Process& process, const std::string& name) {
  char text[2048] = {};
  process.ops().describe(text, sizeof(text));
  const char* at = std::strstr(text, ("\"" + name + "\": ").c_str());
  return at == nullptr ? -1 : std::atol(at + name.size() + 4);
}

// A link lasts, and peers come and go.
TEST(EndedPeers, LeaveNoBuffers) {
  constexpr int kBefore = 4, kPeers = 30;
  constexpr long kChunk = 1 << 20;  // what an arena grows by
  auto exchange = std::make_shared<FakeExchange>();
  Process first(exchange, {});
  Device a(first);
  long bytes = 0;
  for (int i = 0; i < kBefore + kPeers; ++i) {
    if (i == kBefore) bytes = figure(first, "arena_bytes");
    {
      Process second(exchange, {});
      Device b(second);
      Endpoint x(a), y(b);
      connect(x, y);
      ASSERT_EQ(y.post_recv(5, {y.sge(0, 100)}), 0);
      ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
      EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
      EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
    }
    while (figure(first, "links_up") != 0) std::this_thread::yield();
  }
  EXPECT_EQ(figure(first, "links"), kBefore + kPeers);
  EXPECT_LE(figure(first, "arena_bytes") - bytes, kChunk);
}

// Until the process has asked so often, or the endpoint has a completion: that is false.
bool asked(const Process& process, int lookups, Endpoint& end) {
  while (process.lookups_ < lookups)
    if (end.poll() != 0) return false;
  return true;
}

class Outage : public ::testing::TestWithParam<std::string> {};

// A message from x to y waits while the exchange of `process` fails, which asks it so often, and arrives afterwards.
void outlasts(Process& process, int lookups, Endpoint& x, Endpoint& y) {
  process.exchange_broken_ = true;
  process.lookups_ = 0;
  connect(x, y);
  ASSERT_EQ(y.post_recv(5, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  ASSERT_TRUE(asked(process, lookups, x));
  EXPECT_EQ(x.state(), IBV_QPS_RTS);
  process.exchange_broken_ = false;
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
}

// A look-up that fails says nothing of the peer: it counts as no try.
TEST_P(Outage, WhoHasNotFoundItsPeerWaits) {
  auto exchange = std::make_shared<FakeExchange>();
  ProcessOptions options;
  options.transport = GetParam();
  Process first(exchange, options), second(exchange, options);
  Device a(first), b(second);
  for (ibv_qp_type type : {IBV_QPT_RC, IBV_QPT_UC}) {
    QpOptions kind;
    kind.type = type;
    kind.global = true;  // so that each asks, although the process is known
    Endpoint x(a, kind), y(b, kind);
    outlasts(first, 12, x, y);
  }
}

// Nor does one that the process at the other end makes, which must know who connects.
TEST_P(Outage, WhoIsNotFoundByItsPeerWaits) {
  auto exchange = std::make_shared<FakeExchange>();
  ProcessOptions options;
  options.transport = GetParam();
  Process first(exchange, options), second(exchange, options);
  Device a(first), b(second);
  Endpoint x(a), y(b);
  outlasts(second, 30, x, y);
}

INSTANTIATE_TEST_SUITE_P(Transports, Outage, ::testing::ValuesIn(kTransports),
                         [](const auto& info) { return name_in_test(info.param); });

// Nothing moves while it is asked: so it is asked for a tenth of the time at most, whoever waits for it.
TEST(OutageThatTakesTime, LeavesMostOfTheTimeToOthers) {
  constexpr int kTakesMs = 50, kShare = 10, kWaiting = 8, kMessages = 100;
  auto exchange = std::make_shared<FakeExchange>();
  Process first(exchange, {}), second(exchange, {});
  Device a(first), b(second), away(second);
  away.port.lid = static_cast<std::uint16_t>(b.port.lid + 1);  // nobody's
  Endpoint x(a), y(b);
  connect(x, y);
  ASSERT_EQ(y.post_recv(0, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(0, {x.sge(0, 100)}), 0);
  EXPECT_WC(x.wait(), 0, IBV_WC_SUCCESS);
  EXPECT_WC(y.wait(), 0, IBV_WC_SUCCESS);
  first.exchange_broken_ = true;
  first.exchange_takes_ms_ = kTakesMs;
  first.lookups_ = 0;
  const auto begun = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Endpoint>> waiting;
  for (int i = 0; i < kWaiting; ++i) {
    Endpoint& end = *waiting.emplace_back(std::make_unique<Endpoint>(a));
    ASSERT_EQ(end.to_init(end.qp), 0);
    ASSERT_EQ(end.to_rtr(end.qp, away, 1), 0);
  }
  for (int i = 1; i <= kMessages || first.lookups_ < 3; ++i) {
    ASSERT_EQ(y.post_recv(i, {y.sge(0, 100)}), 0);
    ASSERT_EQ(x.post_send(i, {x.sge(0, 100)}), 0);
    EXPECT_WC(x.wait(), i, IBV_WC_SUCCESS);
    EXPECT_WC(y.wait(), i, IBV_WC_SUCCESS);
    const int lookups = first.lookups_;
    const auto took = std::chrono::steady_clock::now() - begun;
    ASSERT_LE(lookups, 1 + took / std::chrono::milliseconds(kTakesMs * (kShare + 1)));
  }
}

// What /proc/net/tcp and tcp6 say listens at a port: "0100007F", all zeros for everywhere.
std::set<std::string> listening_addresses(std::uint16_t port) {
  std::set<std::string> found;
  char wanted[8];
  std::snprintf(wanted, sizeof(wanted), ":%04X", port);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      if (state == "0A" && local.size() > 5 && local.substr(local.size() - 5) == wanted)
        found.insert(local.substr(0, local.size() - 5));
    }
  }
  return found;
}

TEST(Settings, TheNetworkIsWhereAProcessListens) {
  auto exchange = std::make_shared<FakeExchange>();
  ProcessOptions options;
  options.transport = "tcp";
  options.config["SHADOWIB_IB2TCP_NETWORK"] = "127.0.0.0/8";
  Process one(exchange, options), two(exchange, options);
  {
    Device a(one), b(two);
    Endpoint x(a), y(b);
    connect(x, y);
    ASSERT_EQ(y.post_recv(5, {y.sge(0, 100)}), 0);
    ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
    EXPECT_WC(y.wait(), 5, IBV_WC_SUCCESS);
    char figures[2048] = {};
    one.ops().describe(figures, sizeof(figures));
    const std::string text = figures;
    EXPECT_NE(text.find("\"network\": \"127.0.0.0/8\", \"listens\": [\"127.0.0.1\"]"), std::string::npos) << text;
    const std::size_t port = text.find("\"port\": ");
    ASSERT_NE(port, std::string::npos);
    EXPECT_EQ(listening_addresses(static_cast<std::uint16_t>(std::atoi(text.c_str() + port + 8))),
              std::set<std::string>{"0100007F"});
  }
}

TEST(Settings, ANetworkThatThisHostHasNotIsRefused) {
  ProcessOptions options;
  options.transport = "tcp";
  options.config["SHADOWIB_IB2TCP_NETWORK"] = "no-such-one";
  Process process(std::make_shared<FakeExchange>(), options);
  int n = 0;
  ibv_device** list = process.ops().get_device_list(&n);
  EXPECT_EQ(process.ops().open_device(list[0]), nullptr);
  EXPECT_EQ(process.last_errno(), EINVAL);
  EXPECT_NE(process.log().find("lo 127.0.0.1/8"), std::string::npos) << process.log();
  process.ops().free_device_list(list);
}

TEST(Settings, DevicesAndPortsAreParameters) {
  ProcessOptions options;
  options.config["SHADOWIB_IB2TCP_DEVICES"] = "2";
  options.config["SHADOWIB_IB2TCP_PORTS"] = "2";
  Process process(std::make_shared<FakeExchange>(), options);
  int n = 0;
  ibv_device** list = process.ops().get_device_list(&n);
  ASSERT_EQ(n, 2);
  std::set<std::uint16_t> lids;
  for (int d = 0; d < 2; ++d) {
    ibv_context* context = process.ops().open_device(list[d]);
    ibv_device_attr attr{};
    EXPECT_EQ(process.ops().query_device(context, &attr), 0);
    EXPECT_EQ(attr.phys_port_cnt, 2);
    for (std::uint8_t port = 1; port <= 2; ++port) {
      ibv_port_attr p{};
      EXPECT_EQ(process.ops().query_port(context, port, &p, sizeof(p)), 0);
      lids.insert(p.lid);
    }
    EXPECT_EQ(process.ops().close_device(context), 0);
  }
  EXPECT_EQ(lids.size(), 4u);
  EXPECT_EQ(lids.count(0), 0u);
  process.ops().free_device_list(list);
}

}  // namespace
}  // namespace shadowib::ib2tcp::testing
