// Connecting to a peer of which some addresses are dead. All addresses are of this host's loopback network.
#include "ib2tcp/dial.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>

#include "ib2tcp/host.h"
#include "ib2tcp/link.h"
#include "ib2tcp/rendezvous.h"
#include "ib2tcp/socket_address.h"

namespace shadowib::ib2tcp {
namespace {

const HostServices kHost = [] {
  HostServices host{};
  host.abi_version = kBackendAbiVersion;
  host.own_descriptor = [](int fd) { return fd; };
  host.close_descriptor = [](int fd) { ::close(fd); };
  host.unowned_descriptors = [](bool) {};
  host.config = [](const char*) -> const char* { return nullptr; };
  host.log = [](int, const char*) {};
  return host;
}();

IpAddress loopback(std::uint8_t last) { return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 9, 9, last}; }

// Listens, or swallows what asks for a connection: its queue is full and nobody accepts.
class Listener {
 public:
  Listener(std::uint8_t last, std::uint16_t* port, bool silent) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_TRUE(bind_to(fd_, loopback(last), *port)) << errno;
    EXPECT_EQ(::listen(fd_, silent ? 0 : 8), 0);
    sockaddr_in bound{};
    socklen_t length = sizeof(bound);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&bound), &length), 0);
    *port = ntohs(bound.sin_port);
    for (int& fd : fillers_) {
      if (!silent) continue;
      fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
      const SocketAddress to(loopback(last), *port);
      (void)::connect(fd, to.get(), to.bytes());
    }
  }
  ~Listener() {
    ::close(fd_);
    for (int fd : fillers_)
      if (fd >= 0) ::close(fd);
  }

 private:
  int fd_;
  int fillers_[4] = {-1, -1, -1, -1};
};

struct Result {
  bool told = false;
  int fd = -1;
  std::size_t way = 99;
  std::string reason;
};

class Dialing : public ::testing::Test {
 protected:
  void SetUp() override {
    g_host = &kHost;
    engine_ = std::make_unique<Engine>();
    g_engine = engine_.get();
    ASSERT_EQ(engine_->open(), 0);
    ++engine_->handshakes;  // its descriptors are looked at often
  }

  // Whom connecting to these addresses leads to, and how long it took.
  Result dial(std::vector<std::uint8_t> last, std::uint16_t port, int* took_ms) {
    std::vector<WayToPeer> ways;
    for (std::uint8_t end : last) ways.push_back({.to = loopback(end), .number = end});
    Result result;
    const std::int64_t begun = monotonic_ns();
    Dial* dial = Dial::start(
        ways, port,
        [](void* owner, int fd, std::size_t way, const char* reason) {
          *static_cast<Result*>(owner) = {true, fd, way, reason != nullptr ? reason : ""};
        },
        &result);
    EXPECT_NE(dial, nullptr);
    while (dial != nullptr && !result.told && monotonic_ns() - begun < 100'000'000'000) {
      engine_->lock.lock();
      engine_->turn(true);
      engine_->lock.unlock();
    }
    *took_ms = static_cast<int>((monotonic_ns() - begun) / 1'000'000);
    if (result.fd >= 0) ::close(result.fd);
    return result;
  }

  std::unique_ptr<Engine> engine_;
};

TEST_F(Dialing, TheFirstAddressIfItAnswers) {
  std::uint16_t port = 0;
  int took_ms;
  Listener one(1, &port, false), two(2, &port, false);
  EXPECT_EQ(dial({1, 2}, port, &took_ms).way, 1u);
  EXPECT_EQ(dial({2, 1}, port, &took_ms).way, 2u);
}

TEST_F(Dialing, SilentAddressesHoldNothingUp) {
  std::uint16_t port = 0;
  int took_ms;
  Listener one(1, &port, true), two(2, &port, true), three(3, &port, true), four(4, &port, false);
  EXPECT_EQ(dial({1, 2, 3, 4}, port, &took_ms).way, 4u);
  EXPECT_GE(took_ms, 300);
}

TEST_F(Dialing, ARefusalIsFollowedByTheNextAtOnce) {
  std::uint16_t port = 0;
  Listener nine(9, &port, false);
  constexpr int kStaggered = 5 * static_cast<int>(Dial::kStaggerNs / 1'000'000);
  int least_ms = kStaggered;  // other work on the machine only adds to it
  for (int i = 0, took_ms; i < 20 && least_ms >= kStaggered; ++i) {
    EXPECT_EQ(dial({1, 2, 3, 4, 5, 9}, port, &took_ms).way, 9u);
    least_ms = std::min(least_ms, took_ms);
  }
  EXPECT_LT(least_ms, kStaggered);
}

TEST_F(Dialing, TellsWhyIfNobodyAnswers) {
  std::uint16_t port = 0;
  { Listener nobody(1, &port, false); }
  int took_ms;
  const Result result = dial({1, 2}, port, &took_ms);
  EXPECT_EQ(result.fd, -1);
  EXPECT_EQ(result.reason, "Connection refused");
}

}  // namespace
}  // namespace shadowib::ib2tcp
