// A host that says nothing any more while data to it are under way, beside one whose process is only stopped.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <vector>

#include "ib2tcp/host.h"
#include "ib2tcp/testing/endpoint.h"
#include "ib2tcp/testing/member.h"
#include "ib2tcp/transport.h"
#include "ib2tcp/transports/peer_silence.h"

namespace shadowib::ib2tcp {
namespace {

constexpr std::int64_t kStep = 5'000;
constexpr std::uint32_t kPatience = 40'000;

// A connection as the kernel would describe it.
struct Told {
  PeerSilence silence;
  tcp_info info{};
  std::int64_t now_ms = 1'000'000, heard_at_ms = 1'000'000;

  void hear() { heard_at_ms = now_ms; }
  bool ask() {
    info.tcpi_last_ack_recv = info.tcpi_last_data_recv = static_cast<std::uint32_t>(now_ms - heard_at_ms);
    return silence.is_lasting(info, now_ms, kPatience);
  }
  bool ask_after(std::int64_t ms) {
    now_ms += ms;
    return ask();
  }
};

TEST(PeerSilence, NeedsTriesWithoutAnAnswer) {
  Told told;
  EXPECT_FALSE(told.ask());
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(told.ask_after(kStep));  // nothing was sent
  told.info.tcpi_retransmits = 1;
  EXPECT_FALSE(told.ask_after(kStep));
  told.info.tcpi_retransmits = 2;
  EXPECT_TRUE(told.ask_after(kStep));
}

TEST(PeerSilence, NeedsTime) {
  Told told;
  EXPECT_FALSE(told.ask());
  told.info.tcpi_probes = 5;
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(told.ask_after(kStep));
  EXPECT_TRUE(told.ask_after(kStep));
}

// A peer that is stopped: each retransmission is answered by a closed window, and the next one comes after two
// minutes.
TEST(PeerSilence, RetransmissionsThatAreAnsweredDoNotCount) {
  Told told;
  EXPECT_FALSE(told.ask());
  for (int minutes = 0; minutes < 60; minutes += 2) {
    ++told.info.tcpi_retransmits;
    told.now_ms += 1;
    told.hear();
    for (int i = 0; i < 24; ++i) EXPECT_FALSE(told.ask_after(kStep));
  }
  told.info.tcpi_retransmits += 2;
  EXPECT_TRUE(told.ask_after(kStep));
}

TEST(PeerSilence, WhoWasStoppedItselfJudgesFromThenOn) {
  Told told;
  EXPECT_FALSE(told.ask());
  told.now_ms += 540'000;  // five retransmissions, all answered
  told.info.tcpi_retransmits = 5;
  told.hear();
  EXPECT_FALSE(told.ask_after(60'000));
  EXPECT_FALSE(told.ask_after(kStep));
  told.info.tcpi_retransmits = 7;
  EXPECT_TRUE(told.ask_after(kStep));
}

// From now on nothing that comes in by the socket arrives, as if the other host were gone.
void make_deaf(int fd) {
  sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &nothing};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0) << errno;
}

const HostServices kHost = [] {
  HostServices host{};
  host.close_descriptor = [](int fd) { ::close(fd); };
  return host;
}();

// Two ends of the loopback network. The second one reads nothing.
class Connection : public ::testing::Test {
 protected:
  void SetUp() override {
    g_host = &kHost;
    std::uint16_t port = 0;
    const int listener = testing::listen_on_loopback(&port);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    peer_ = ::accept(listener, nullptr, nullptr);
    ::close(listener);
    stream_.reset(make_tcp_stream(fd_));
  }
  void TearDown() override { ::close(peer_); }

  // As much as the connection takes.
  void fill() {
    std::vector<char> bytes(1 << 20);
    const iovec part{bytes.data(), bytes.size()};
    while (stream_->writev(&part, 1) > 0) ::usleep(1000);
  }
  bool is_lost_within(int ms) {
    return testing::eventually([this] { return stream_->has_lost_peer(1500); }, ms);
  }

  int fd_ = -1, peer_ = -1;
  std::unique_ptr<Stream> stream_;
};

TEST_F(Connection, IsNotLostWhileThePeerIsStopped) {
  fill();
  EXPECT_FALSE(is_lost_within(8000));
}

TEST_F(Connection, IsLostWithDataUnderWay) {
  const char byte = 0;
  const iovec part{const_cast<char*>(&byte), 1};
  make_deaf(fd_);
  ASSERT_EQ(stream_->writev(&part, 1), 1);
  EXPECT_TRUE(is_lost_within(20000));
}

TEST_F(Connection, IsLostBehindAClosedWindow) {
  fill();
  make_deaf(fd_);
  EXPECT_TRUE(is_lost_within(60000));
}

}  // namespace

namespace testing {
namespace {

// No data pass between these two any more.
void part(Process& one, Process& other) {
  int deaf = 0;
  for (Process* process : {&one, &other}) {
    std::lock_guard<std::mutex> guard(process->mutex_);
    for (int fd : process->descriptors_) {
      tcp_info info{};
      socklen_t bytes = sizeof(info);
      if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 || info.tcpi_state != TCP_ESTABLISHED) continue;
      make_deaf(fd);
      ++deaf;
    }
  }
  ASSERT_GE(deaf, 2);
}

TEST(Host, ThatIsGoneEndsWhatIsUnderWay) {
  auto exchange = std::make_shared<FakeExchange>();
  ProcessOptions options;
  options.transport = "tcp";
  Process first(exchange, options), second(exchange, options);
  Device a(first), b(second);
  Endpoint x(a), y(b);
  connect(x, y);
  ASSERT_EQ(y.post_recv(1, {y.sge(0, 100)}), 0);
  ASSERT_EQ(x.post_send(1, {x.sge(0, 100)}), 0);
  EXPECT_WC(x.wait(), 1, IBV_WC_SUCCESS);
  part(first, second);
  ASSERT_EQ(x.post_send(2, {x.sge(0, 1 << 20)}), 0);
  ibv_wc wc{};
  EXPECT_TRUE(eventually([&] { return x.ops.poll_cq(x.cq, 1, &wc) == 1; }, 120000));
  EXPECT_WC(wc, 2, IBV_WC_RETRY_EXC_ERR);
}

}  // namespace
}  // namespace testing
}  // namespace shadowib::ib2tcp
