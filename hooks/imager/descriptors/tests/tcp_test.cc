// TCP across checkpoint and restart: addresses and options, bytes in flight, half-closed connections, ports.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "hooks/imager/descriptors/tests/test_job.h"
#include "hooks/imager/descriptors/tests/test_sockets.h"

namespace shadowib::test {
namespace {

// What a test remembers over the restart: memory of the test process itself, shared with members by files.
struct Ports {
  std::uint16_t listener = 0, client = 0;
};

class Tcp : public ::testing::TestWithParam<int> {};

TEST_P(Tcp, BytesInFlightPortsAndListener) {
  int domain = GetParam();
  Job job;
  std::uint16_t port = 0;
  job.make = [&]() -> std::string {
    EXPECT_STEP(listen_tcp(domain, 3, &port) == 3);
    return "";
  };
  std::string ports_file = scratch_directory() + "/ports";
  job.before = [&](int member) -> std::string {
    if (member == 1) {
      ::close(3);
      EXPECT_STEP(connect_tcp(domain, 10, port) == 10);
      EXPECT_STEP(say(10, "from one"));
      int cork = 1;
      ::setsockopt(10, IPPROTO_TCP, TCP_CORK, &cork, sizeof(cork));
      EXPECT_STEP(say(10, ", corked"));
      Ports ports{port, port_of(10, ::getsockname)};
      int f = ::open(ports_file.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
      EXPECT_STEP(::write(f, &ports, sizeof(ports)) == sizeof(ports));
      ::close(f);
    } else {
      EXPECT_STEP(put(::accept(3, nullptr, nullptr), 11) == 11);
      EXPECT_STEP(say(11, "from zero"));
      int on = 1;
      ::setsockopt(11, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      ::fcntl(11, F_SETFL, ::fcntl(11, F_GETFL) | O_NONBLOCK);
    }
    return "";
  };
  job.resumed = job.restarted = [&](int member) -> std::string {
    Ports ports;
    int f = ::open(ports_file.c_str(), O_RDONLY);
    EXPECT_STEP(::read(f, &ports, sizeof(ports)) == sizeof(ports));
    ::close(f);
    if (member == 1) {
      EXPECT_STEP(read_some(10, 9) == "from zero" && say(10, ", then"));
      int cork = 0;
      socklen_t length = sizeof(cork);
      EXPECT_STEP(::getsockopt(10, IPPROTO_TCP, TCP_CORK, &cork, &length) == 0 && cork == 1);
      cork = 0;
      ::setsockopt(10, IPPROTO_TCP, TCP_CORK, &cork, sizeof(cork));
      EXPECT_STEP(port_of(10, ::getsockname) == ports.client && port_of(10, ::getpeername) == ports.listener);
      EXPECT_STEP(connect_tcp(domain, 20, ports.listener) == 20 && say(20, "again"));
    } else {
      EXPECT_STEP(read_some(11, 22) == "from one, corked, then");
      int on = 0;
      socklen_t length = sizeof(on);
      EXPECT_STEP(::getsockopt(11, IPPROTO_TCP, TCP_NODELAY, &on, &length) == 0 && on == 1);
      EXPECT_STEP((::fcntl(11, F_GETFL) & O_NONBLOCK) != 0);
      EXPECT_STEP(port_of(11, ::getsockname) == ports.listener && port_of(11, ::getpeername) == ports.client);
      int accepted = ::accept(3, nullptr, nullptr);
      EXPECT_STEP(accepted >= 0 && read_some(accepted, 5) == "again");
      linger reset{1, 0};
      ::setsockopt(accepted, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
      ::close(accepted);
    }
    meet();
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

INSTANTIATE_TEST_SUITE_P(Families, Tcp, ::testing::Values(AF_INET, AF_INET6));

// Every option that getsockopt tells, but those that change by themselves. "6/13=72656e6f" for each.
std::string told_options(int fd) {
  static const std::set<std::pair<int, int>> kVolatile = {
      {SOL_SOCKET, SO_ERROR},        {SOL_SOCKET, SO_PEERCRED},
      {SOL_SOCKET, SO_INCOMING_CPU}, {SOL_SOCKET, SO_MEMINFO},
      {SOL_SOCKET, SO_COOKIE},       {SOL_SOCKET, SO_INCOMING_NAPI_ID},
      {IPPROTO_TCP, TCP_INFO},       {IPPROTO_TCP, TCP_CC_INFO},
      {IPPROTO_TCP, TCP_TIMESTAMP},  {IPPROTO_TCP, TCP_MAXSEG},
      {IPPROTO_IP, IP_MTU},          {IPPROTO_IPV6, IPV6_MTU},
      {IPPROTO_TCP, TCP_SAVED_SYN},  {IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE},
      {IPPROTO_IPV6, IPV6_V6ONLY}};  // bind sets it when it is given an address
  std::string text;
  for (const int level : std::vector<int>{SOL_SOCKET, IPPROTO_TCP, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP})
    for (int name = 1; name < 110; ++name) {
      unsigned char value[16];
      socklen_t length = sizeof(value);
      if (kVolatile.contains({level, name}) ||
          (level == IPPROTO_TCP && name >= TCP_REPAIR && name <= TCP_QUEUE_SEQ) ||
          ::getsockopt(fd, level, name, value, &length) != 0)
        continue;
      text += std::to_string(level) + "/" + std::to_string(name) + "=";
      for (socklen_t i = 0; i < length; ++i) text += std::to_string(value[i]) + ".";
      text += " ";
    }
  return text;
}

std::string differences(const std::string& was, const std::string& is) {
  std::istringstream before(was), after(is);
  std::string text, a, b;
  while (bool(before >> a) & bool(after >> b))
    if (a != b) text += " was " + a + ", is " + b + ";";
  return text;
}

void set_options(int fd, bool stream) {
  auto set = [fd](int level, int name, int value) { (void)::setsockopt(fd, level, name, &value, sizeof(value)); };
  set(SOL_SOCKET, SO_MARK, 5);  // of root alone
  set(SOL_SOCKET, SO_TIMESTAMPING, 8 | 16);
  set(SOL_SOCKET, SO_BUSY_POLL, 20);
  set(SOL_SOCKET, SO_MAX_PACING_RATE, 1000000);
  set(SOL_SOCKET, SO_ZEROCOPY, 1);
  set(IPPROTO_IP, IP_RECVTTL, 1);
  set(IPPROTO_IP, IP_TOS, 0x28);
  set(SOL_SOCKET, SO_PRIORITY, 3);
  if (!stream) {
    set(IPPROTO_UDP, 104 /* UDP_GRO */, 1);
    set(IPPROTO_UDP, 103 /* UDP_SEGMENT */, 512);
    set(IPPROTO_IP, IP_MULTICAST_ALL, 0);
    return;
  }
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 5);
  set(IPPROTO_TCP, TCP_INQ, 1);
  set(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
  set(IPPROTO_TCP, TCP_SYNCNT, 4);
}

// Call when no more bytes come. The kernel ends the mode once an acknowledgement was delayed for long.
std::string delay_acknowledgements(int fd) {
  for (int unacknowledged = 1; unacknowledged > 0; ::sched_yield())
    EXPECT_STEP(::ioctl(fd, SIOCOUTQ, &unacknowledged) == 0);
  meet();  // the peer's bytes are acknowledged, too
  const int quick = 0;
  EXPECT_STEP(::setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &quick, sizeof(quick)) == 0);
  return "";
}

// Of both ends of a connection with bytes in flight, a listener and a datagram socket.
TEST_P(Tcp, AllOptionsAreWhatTheyWere) {
  const int domain = GetParam();
  Job job;
  std::uint16_t port = 0;
  job.make = [&]() -> std::string {
    EXPECT_STEP(listen_tcp(domain, 3, &port) == 3);
    const int on = 5;
    EXPECT_STEP(::setsockopt(3, IPPROTO_TCP, TCP_FASTOPEN, &on, sizeof(on)) == 0);
    return "";
  };
  const std::string file = scratch_directory() + "/options";
  auto all_options = [](int member) {
    return member == 0 ? told_options(3) + "\n" + told_options(11) : told_options(10) + "\n" + told_options(12);
  };
  job.before = [&](int member) -> std::string {
    if (member == 0) {
      EXPECT_STEP(put(::accept(3, nullptr, nullptr), 11) == 11);
      set_options(11, true);
      meet();
      EXPECT_STEP(say(11, "to the client"));
    } else {
      ::close(3);
      EXPECT_STEP(connect_tcp(domain, 10, port) == 10);
      EXPECT_STEP(put(::socket(domain, SOCK_DGRAM, 0), 12) == 12);
      set_options(10, true);
      set_options(12, false);
      meet();
      EXPECT_STEP(say(10, "to the server"));
    }
    meet();
    const std::string failure = delay_acknowledgements(member == 0 ? 11 : 10);
    std::ofstream(file + std::to_string(member)) << all_options(member);
    meet();
    return failure;
  };
  job.resumed = job.restarted = [&](int member) -> std::string {
    meet();
    std::stringstream was;
    was << std::ifstream(file + std::to_string(member)).rdbuf();
    const std::string is = all_options(member);
    meet();
    return differences(was.str(), is);
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

std::string pattern(std::size_t bytes) {
  std::string text(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>((i * 2654435761u) >> 13);
  return text;
}

// A sender that has filled every buffer on the way; the receiver has read nothing.
std::string stalled_stream(int receive_buffer, int chunk) {
  Job job;
  std::uint16_t port = 0;
  std::string amount = scratch_directory() + "/amount", all = pattern(24 << 20);
  job.make = [&]() -> std::string {
    EXPECT_STEP(listen_tcp(AF_INET, 3, &port) == 3);
    if (receive_buffer > 0) ::setsockopt(3, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    return "";
  };
  job.before = [&](int member) -> std::string {
    if (member == 0) {
      EXPECT_STEP(put(::accept(3, nullptr, nullptr), 11) == 11);
      meet();
      return "";
    }
    ::close(3);
    EXPECT_STEP(connect_tcp(AF_INET, 10, port) == 10);
    std::size_t sent = 0;
    for (int idle = 0; idle < 3;) {  // full means: three times nothing more in a row
      ssize_t n = ::send(10, all.data() + sent,
                         std::min<std::size_t>(static_cast<std::size_t>(chunk), all.size() - sent), MSG_DONTWAIT);
      if (n > 0) {
        sent += static_cast<std::size_t>(n);
        idle = 0;
      } else {
        ::poll(nullptr, 0, 5);
        ++idle;
      }
    }
    int f = ::open(amount.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    EXPECT_STEP(::write(f, &sent, sizeof(sent)) == sizeof(sent));
    ::close(f);
    meet();
    return "";
  };
  job.resumed = job.restarted = [&](int member) -> std::string {
    std::size_t sent = 0;
    int f = ::open(amount.c_str(), O_RDONLY);
    EXPECT_STEP(::read(f, &sent, sizeof(sent)) == sizeof(sent) && sent > 0);
    ::close(f);
    if (member == 1) {
      EXPECT_STEP(say(10, "the end"));
      ::shutdown(10, SHUT_WR);
      meet();
    } else {
      EXPECT_STEP(read_some(11, sent) == all.substr(0, sent));
      EXPECT_STEP(read_some(11, 100) == "the end" && at_end(11));
      int low = 0, size = 0, lock = 0;
      socklen_t length = sizeof(low);
      ::getsockopt(11, SOL_SOCKET, SO_RCVLOWAT, &low, &length);
      ::getsockopt(11, SOL_SOCKET, SO_RCVBUF, &size, &length);
      ::getsockopt(11, SOL_SOCKET, 72, &lock, &length);
      EXPECT_STEP(low == 1);
      if (receive_buffer > 0) EXPECT_STEP(size == 2 * receive_buffer && (lock & 2) != 0);
      meet();
    }
    return "";
  };
  return checkpoint_and_restart(job);
}

TEST(TcpInFlight, StalledSender) { EXPECT_EQ(stalled_stream(0, 65536), ""); }
TEST(TcpInFlight, StalledSenderOfSmallPieces) { EXPECT_EQ(stalled_stream(0, 700), ""); }
TEST(TcpInFlight, StalledSenderIntoAFixedBuffer) { EXPECT_EQ(stalled_stream(20000, 65536), ""); }

TEST(TcpStates, HalfClosedGoneAndFinished) {
  Job job;
  std::uint16_t port = 0;
  job.make = [&]() -> std::string {
    EXPECT_STEP(listen_tcp(AF_INET, 3, &port) == 3);
    return "";
  };
  job.before = [&](int member) -> std::string {
    for (int i = 0; i < 3; ++i) {
      if (member == 1) {
        EXPECT_STEP(connect_tcp(AF_INET, 10 + i, port) == 10 + i);
      } else {
        EXPECT_STEP(put(::accept(3, nullptr, nullptr), 10 + i) == 10 + i);
      }
      meet();
    }
    ::close(3);
    if (member == 1) {
      EXPECT_STEP(say(10, "last words") && ::shutdown(10, SHUT_WR) == 0);
      EXPECT_STEP(say(11, "gone") && ::close(11) == 0);
      EXPECT_STEP(say(12, "over") && ::shutdown(12, SHUT_WR) == 0);
    }
    meet();
    if (member == 0) EXPECT_STEP(::shutdown(12, SHUT_WR) == 0);
    meet();
    put(::socket(AF_INET, SOCK_STREAM, 0), 15);
    return "";
  };
  job.resumed = job.restarted = [&](int member) -> std::string {
    if (member == 0) {
      EXPECT_STEP(read_some(10, 10) == "last words" && at_end(10) && say(10, "answer"));
      EXPECT_STEP(read_some(11, 4) == "gone" && at_end(11));
      EXPECT_STEP(read_some(12, 4) == "over" && at_end(12) && !say(12, "x") && errno == EPIPE);
    } else {
      EXPECT_STEP(!say(10, "x") && errno == EPIPE && read_some(10, 6) == "answer");
      EXPECT_STEP(::fcntl(11, F_GETFD) < 0 && at_end(12));
      sockaddr_in in{};
      in.sin_family = AF_INET;
      EXPECT_STEP(::bind(15, reinterpret_cast<sockaddr*>(&in), sizeof(in)) == 0 && ::listen(15, 1) == 0);
    }
    meet();
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

TEST(TcpPorts, TakenMeanwhileComesBackElsewhere) {
  Job job;
  std::uint16_t port = 0;
  job.make = [&]() -> std::string {
    EXPECT_STEP(listen_tcp(AF_INET, 3, &port) == 3);
    return "";
  };
  job.before = [&](int member) -> std::string {
    if (member == 1) {
      EXPECT_STEP(connect_tcp(AF_INET, 10, port) == 10);
      EXPECT_STEP(put(::open((scratch_directory() + "/port").c_str(), O_CREAT | O_RDWR | O_TRUNC, 0600), 20) == 20);
      EXPECT_STEP(::write(20, &port, sizeof(port)) == sizeof(port));
    } else {
      EXPECT_STEP(put(::accept(3, nullptr, nullptr), 10) == 10 && say(10, "queued"));
    }
    ::close(3);
    return "";
  };
  job.restarted = [](int member) -> std::string {
    if (member == 1) EXPECT_STEP(read_some(10, 6) == "queued" && say(10, "reply"));
    if (member == 0) EXPECT_STEP(read_some(10, 5) == "reply");
    meet();
    return "";
  };
  Capture capture = checkpoint(job);
  ASSERT_EQ(capture.failure, "");
  int f = ::open((scratch_directory() + "/port").c_str(), O_RDONLY);
  ASSERT_EQ(::read(f, &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  ::close(f);
  int thief = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in in = loopback(port);
  ASSERT_EQ(::bind(thief, reinterpret_cast<sockaddr*>(&in), sizeof(in)), 0) << "the end leaves no TIME_WAIT";
  ASSERT_EQ(::listen(thief, 1), 0);
  EXPECT_EQ(restart(job, capture.tables), "");
  ::close(thief);
}

}  // namespace
}  // namespace shadowib::test
