// Unix, TCP and UDP sockets across checkpoint and restart, idle and with bytes in flight.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/test_job.h"

namespace shadowib::test {
namespace {

sockaddr_un unix_address(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + (name[0] == '\0' ? 0 : 1));
  return address;
}

int unix_call(int (*call)(int, const sockaddr*, socklen_t), int fd, const std::string& name) {
  socklen_t length;
  sockaddr_un address = unix_address(name, &length);
  return call(fd, reinterpret_cast<sockaddr*>(&address), length);
}

std::string peer_name(int fd) {
  sockaddr_un address{};
  socklen_t length = sizeof(address);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "?";
  return length <= offsetof(sockaddr_un, sun_path) ? "" : address.sun_path;
}

std::string receive(int fd) {
  char text[4096];
  ssize_t n = ::recv(fd, text, sizeof(text), MSG_DONTWAIT);
  return n < 0 ? "<" + std::to_string(errno) + ">" : std::string(text, static_cast<std::size_t>(n));
}

bool say(int fd, const std::string& text) {
  return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

TEST(UnixSockets, PairsWithBytesBothWays) {
  Job job;
  std::string big(100000, 'u');
  job.make = []() -> std::string {
    int p[2];
    for (int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) EXPECT_STEP(::socketpair(AF_UNIX, type, 0, p) == 0);
    EXPECT_STEP(p[1] == 8);  // 3-4, 5-6, 7-8
    return "";
  };
  job.before = [&](int member) -> std::string {
    for (int pair = 3; pair <= 7; pair += 2) ::close(pair + (member == 0 ? 1 : 0));
    int stream = 3 + member, packet = 5 + member, datagram = 7 + member;
    EXPECT_STEP(say(stream, member == 0 ? "zero" : "one"));
    if (member == 0) {
      for (int i = 0; i < 10; ++i) EXPECT_STEP(say(stream, big.substr(0, big.size() / 10)));
      int on = 1;
      ::setsockopt(stream, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    }
    EXPECT_STEP(say(packet, "p1") && say(packet, "packet2"));
    EXPECT_STEP(say(datagram, "d1") && say(datagram, "datagram2"));
    return "";
  };
  job.resumed = job.restarted = [&](int member) -> std::string {
    int stream = 3 + member, packet = 5 + member, datagram = 7 + member;
    if (member == 0) {
      int on = 0;
      socklen_t length = sizeof(on);
      EXPECT_STEP(::getsockopt(stream, SOL_SOCKET, SO_KEEPALIVE, &on, &length) == 0 && on == 1);
    }
    EXPECT_STEP(say(stream, "more"));
    EXPECT_STEP(read_some(stream, member == 0 ? 7 : 8 + big.size()) ==
                (member == 0 ? "onemore" : "zero" + big + "more"));
    EXPECT_STEP(receive(packet) == "p1" && receive(packet) == "packet2" && receive(packet) == "<11>");
    EXPECT_STEP(receive(datagram) == "d1" && receive(datagram) == "datagram2" && receive(datagram) == "<11>");
    meet();
    EXPECT_STEP(say(datagram, "new") && say(packet, "new"));
    meet();
    EXPECT_STEP(receive(datagram) == "new" && receive(packet) == "new");
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

TEST(UnixSockets, ListenersNamesAndConnections) {
  Job job;
  std::string path = scratch_directory() + "/listener", abstract = std::string("\0shadowib-test", 14);
  abstract += std::to_string(::getpid());
  job.before = [&](int member) -> std::string {
    if (member == 0) {
      EXPECT_STEP(::socket(AF_UNIX, SOCK_STREAM, 0) == 3 && unix_call(::bind, 3, path) == 0 && ::listen(3, 7) == 0);
      EXPECT_STEP(::socket(AF_UNIX, SOCK_SEQPACKET, 0) == 4 && unix_call(::bind, 4, abstract) == 0);
      EXPECT_STEP(::listen(4, 5) == 0);
    }
    meet();
    if (member == 1) {
      EXPECT_STEP(put(::socket(AF_UNIX, SOCK_STREAM, 0), 10) == 10 && unix_call(::connect, 10, path) == 0);
      EXPECT_STEP(say(10, "hello"));
    } else {
      EXPECT_STEP(put(::accept(3, nullptr, nullptr), 11) == 11);
      EXPECT_STEP(say(11, "welcome"));
    }
    return "";
  };
  job.resumed = job.restarted = [&](int member) -> std::string {
    if (member == 1) {
      EXPECT_STEP(peer_name(10) == path && read_some(10, 7) == "welcome");
      EXPECT_STEP(::socket(AF_UNIX, SOCK_SEQPACKET, 0) == 3 && unix_call(::connect, 3, abstract) == 0);
      EXPECT_STEP(::socket(AF_UNIX, SOCK_STREAM, 0) == 4 && unix_call(::connect, 4, path) == 0);
      EXPECT_STEP(say(3, "new"));
    } else {
      EXPECT_STEP(read_some(11, 5) == "hello");
      int accepted = ::accept(4, nullptr, nullptr);
      EXPECT_STEP(accepted >= 0 && read_some(accepted, 3) == "new");
      EXPECT_STEP(::accept(3, nullptr, nullptr) >= 0);
    }
    meet();
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

TEST(UnixSockets, NamedDatagramsAndHalfClosedStreams) {
  Job job;
  std::string server = scratch_directory() + "/server", client = scratch_directory() + "/client";
  job.make = []() -> std::string {
    int p[2];
    EXPECT_STEP(::socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);  // 3-4: member 0 shuts down its direction
    EXPECT_STEP(::socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0);  // 5: the other end closes with bytes left
    EXPECT_STEP(say(6, "late"));
    EXPECT_STEP(::close(6) == 0);
    return "";
  };
  job.before = [&](int member) -> std::string {
    ::close(member == 0 ? 4 : 3);
    if (member == 0) {
      ::close(5);
      EXPECT_STEP(say(3, "fin") && ::shutdown(3, SHUT_WR) == 0);
      EXPECT_STEP(put(::socket(AF_UNIX, SOCK_DGRAM, 0), 10) == 10 && unix_call(::bind, 10, server) == 0);
    }
    meet();
    if (member == 1) {
      EXPECT_STEP(put(::socket(AF_UNIX, SOCK_DGRAM, 0), 11) == 11 && unix_call(::bind, 11, client) == 0);
      EXPECT_STEP(unix_call(::connect, 11, server) == 0 && say(11, "a") && say(11, "bb"));
    }
    meet();
    return "";
  };
  job.resumed = job.restarted = [&](int member) -> std::string {
    if (member == 0) {
      EXPECT_STEP(::send(3, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
      EXPECT_STEP(read_some(3, 5) == "reply");
      char text[16];
      sockaddr_un from{};
      socklen_t length = sizeof(from);
      EXPECT_STEP(::recvfrom(10, text, sizeof(text), 0, reinterpret_cast<sockaddr*>(&from), &length) == 1);
      EXPECT_STEP(client == from.sun_path && receive(10) == "bb");
      EXPECT_STEP(unix_call(::connect, 10, client) == 0 && say(10, "answer"));
    } else {
      EXPECT_STEP(read_some(4, 3) == "fin" && at_end(4) && say(4, "reply"));
      EXPECT_STEP(read_some(5, 4) == "late" && at_end(5));
      EXPECT_STEP(read_some(11, 6) == "answer" && peer_name(11) == server);
    }
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

sockaddr_in6 mapped_loopback(std::uint16_t port, bool ipv6) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  if (ipv6) address.sin6_addr = in6addr_loopback;
  return address;
}

std::uint16_t port_of(int fd, int (*query)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  query(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

// What a test remembers over the restart: memory of the test process itself, shared with members by files.
struct Ports {
  std::uint16_t listener = 0, client = 0;
};

int listen_tcp(int domain, int fd, std::uint16_t* port) {
  put(::socket(domain, SOCK_STREAM, 0), fd);
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 in6 = mapped_loopback(0, true);
  sockaddr* address = domain == AF_INET ? reinterpret_cast<sockaddr*>(&in) : reinterpret_cast<sockaddr*>(&in6);
  socklen_t length = domain == AF_INET ? sizeof(in) : sizeof(in6);
  if (::bind(fd, address, length) != 0 || ::listen(fd, 9) != 0) return -1;
  *port = port_of(fd, ::getsockname);
  return fd;
}

int connect_tcp(int domain, int fd, std::uint16_t port) {
  put(::socket(domain, SOCK_STREAM, 0), fd);
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  in.sin_port = htons(port);
  sockaddr_in6 in6 = mapped_loopback(port, true);
  sockaddr* address = domain == AF_INET ? reinterpret_cast<sockaddr*>(&in) : reinterpret_cast<sockaddr*>(&in6);
  return ::connect(fd, address, domain == AF_INET ? sizeof(in) : sizeof(in6)) == 0 ? fd : -1;
}

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
// Everything a supervisor makes, made by an ordinary user who is pid 1 in namespaces of its own.
TEST(Unprivileged, RestartsInUserAndPidNamespaces) {
  Job job;
  job.unprivileged = true;
  std::uint16_t port = 0;
  std::string file = scratch_directory() + "/file";
  job.make = [&]() -> std::string {
    int p[2];
    EXPECT_STEP(listen_tcp(AF_INET, 3, &port) == 3);
    EXPECT_STEP(::socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0 && p[1] == 5);
    EXPECT_STEP(::pipe2(p, O_NONBLOCK) == 0 && p[1] == 7);
    return "";
  };
  job.before = [&](int member) -> std::string {
    ::close(4 + member);
    ::close(6 + member);
    if (member == 1) {
      ::close(3);
      EXPECT_STEP(connect_tcp(AF_INET, 10, port) == 10 && say(10, "tcp") && say(4, "unix"));
    } else {
      EXPECT_STEP(put(::accept(3, nullptr, nullptr), 10) == 10 && ::write(7, "pipe", 4) == 4);
    }
    EXPECT_STEP(put(::open(file.c_str(), O_CREAT | O_RDONLY, 0644), 11) == 11);
    EXPECT_STEP(put(::epoll_create1(0), 12) == 12);
    epoll_event e{};
    e.events = EPOLLIN;
    EXPECT_STEP(::epoll_ctl(12, EPOLL_CTL_ADD, 10, &e) == 0);
    meet();
    return "";
  };
  job.restarted = [](int member) -> std::string {
    epoll_event e{};
    if (member == 1) {
      EXPECT_STEP(read_some(6, 4) == "pipe" && (::fcntl(6, F_GETFL) & O_NONBLOCK) != 0);
      EXPECT_STEP(::epoll_wait(12, &e, 1, 0) == 0);
    } else {
      EXPECT_STEP(read_some(5, 4) == "unix" && ::epoll_wait(12, &e, 1, 0) == 1 && read_some(10, 3) == "tcp");
    }
    meet();
    return "";
  };
  std::string words = checkpoint_and_restart(job);
  if (words.find("SKIP") != std::string::npos) GTEST_SKIP() << words;
  EXPECT_EQ(words, "");
}

INSTANTIATE_TEST_SUITE_P(Families, Tcp, ::testing::Values(AF_INET, AF_INET6));

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
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  in.sin_port = htons(port);
  ASSERT_EQ(::bind(thief, reinterpret_cast<sockaddr*>(&in), sizeof(in)), 0) << "the end leaves no TIME_WAIT";
  ASSERT_EQ(::listen(thief, 1), 0);
  EXPECT_EQ(restart(job, capture.tables), "");
  ::close(thief);
}

TEST(Udp, BoundAndConnectedWithinTheJob) {
  Job job;
  std::uint16_t port = 0;
  job.make = [&]() -> std::string {
    EXPECT_STEP(::socket(AF_INET, SOCK_DGRAM, 0) == 3);
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_STEP(::bind(3, reinterpret_cast<sockaddr*>(&in), sizeof(in)) == 0);
    port = port_of(3, ::getsockname);
    return "";
  };
  job.before = [&](int member) -> std::string {
    if (member == 0) return "";
    ::close(3);
    put(::socket(AF_INET, SOCK_DGRAM, 0), 4);
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in.sin_port = htons(port);
    EXPECT_STEP(::connect(4, reinterpret_cast<sockaddr*>(&in), sizeof(in)) == 0);
    EXPECT_STEP(put(::socket(AF_NETLINK, SOCK_RAW, 0), 5) == 5);
    return "";
  };
  job.resumed = job.restarted = [](int member) -> std::string {
    if (member == 1) EXPECT_STEP(say(4, "datagram"));
    if (member == 0) EXPECT_STEP(read_some(3, 8) == "datagram");
    meet();
    return "";
  };
  EXPECT_EQ(checkpoint_and_restart(job), "");
}

}  // namespace
}  // namespace shadowib::test
