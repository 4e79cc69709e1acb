// Unix sockets across checkpoint and restart: pairs, listeners, names, queued bytes, closed directions.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "hooks/imager/descriptors/tests/test_job.h"
#include "hooks/imager/descriptors/tests/test_sockets.h"

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

// The name of who has sent the next datagram, if that has so many bytes.
std::string receive_from(int fd, ssize_t bytes) {
  char text[4096];
  sockaddr_un from{};
  socklen_t length = sizeof(from);
  if (::recvfrom(fd, text, sizeof(text), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), &length) != bytes)
    return "?";
  if (length <= offsetof(sockaddr_un, sun_path)) return "";
  return from.sun_path[0] != '\0' ? from.sun_path
                                  : std::string(from.sun_path, length - offsetof(sockaddr_un, sun_path));
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

// More than the buffer of a new socket takes.
TEST(UnixSockets, LargeQueuedDatagrams) {
  Job job;
  job.members = 1;
  constexpr int kDatagrams = 8;  // net.unix.max_dgram_qlen may be 10
  const std::string large(50000, 'd');
  job.before = [&](int) -> std::string {
    int p[2], bytes = 400000;
    EXPECT_STEP(::socketpair(AF_UNIX, SOCK_DGRAM, 0, p) == 0);
    EXPECT_STEP(put(p[0], 10) == 10 && put(p[1], 11) == 11);
    EXPECT_STEP(::setsockopt(10, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)) == 0 ||
                ::setsockopt(10, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) == 0);
    for (int i = 0; i < kDatagrams; ++i)
      EXPECT_STEP(::send(10, large.data(), large.size(), MSG_DONTWAIT) == static_cast<ssize_t>(large.size()));
    return "";
  };
  job.resumed = job.restarted = [&](int) -> std::string {
    int bytes = 0;
    socklen_t length = sizeof(bytes);
    EXPECT_STEP(::getsockopt(10, SOL_SOCKET, SO_SNDBUF, &bytes, &length) == 0 && bytes == 800000);
    std::string text(2 * large.size(), 0);
    for (int i = 0; i < kDatagrams; ++i)
      EXPECT_STEP(::recv(11, text.data(), text.size(), MSG_DONTWAIT) == static_cast<ssize_t>(large.size()) &&
                  text.compare(0, large.size(), large) == 0);
    EXPECT_STEP(::recv(11, text.data(), text.size(), MSG_DONTWAIT) < 0 && errno == EAGAIN);
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
  const std::string server = scratch_directory() + "/server", client = scratch_directory() + "/client";
  const std::string gone = scratch_directory() + "/gone", stale = scratch_directory() + "/stale";
  const std::string hidden = std::string(1, '\0') + "shadowib-test-" + std::to_string(::getpid());
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
      for (const std::string& name : {gone, hidden, stale}) {
        EXPECT_STEP(put(::socket(AF_UNIX, SOCK_DGRAM, 0), 11) == 11 && unix_call(::bind, 11, name) == 0);
        EXPECT_STEP(unix_call(::connect, 11, server) == 0 && say(11, "last words") && ::close(11) == 0);
      }
      ::unlink(gone.c_str());
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
      // Of senders that are gone by now; a name that is still in the file system cannot be had for a moment.
      EXPECT_STEP(receive_from(10, 10) == gone);
      EXPECT_STEP(receive_from(10, 10) == hidden);
      EXPECT_STEP(receive(10) == "last words");
      EXPECT_STEP(receive_from(10, 1) == client && receive(10) == "bb");
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

}  // namespace
}  // namespace shadowib::test
