#include "storm/control.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <system_error>

namespace storm {
namespace {

[[noreturn]] void die(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

void never_wait(int fd) {
  if (::fcntl(fd, F_SETFL, O_NONBLOCK) != 0) die("fcntl");
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

int listen_anywhere(int backlog, int* port) {
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof(address);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(fd, backlog) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    die("listen");
  *port = ntohs(address.sin_port);
  return fd;
}

std::string port_file(const std::string& area, int rank) { return area + "/port-" + std::to_string(rank); }

void publish_port(const std::string& area, int rank, int port) {
  const std::string name = port_file(area, rank), fresh = name + ".new";
  std::FILE* file = std::fopen(fresh.c_str(), "w");
  if (file == nullptr || std::fprintf(file, "%d\n", port) < 0 || std::fclose(file) != 0 ||
      std::rename(fresh.c_str(), name.c_str()) != 0)
    die(name);
}

int await_port(const std::string& area, int rank) {
  for (;;) {
    int port = 0;
    if (std::FILE* file = std::fopen(port_file(area, rank).c_str(), "r")) {
      const int found = std::fscanf(file, "%d", &port);
      std::fclose(file);
      if (found == 1) return port;
    }
    ::usleep(2000);
  }
}

void all_of(int fd, void* bytes, std::size_t size, bool out) {
  auto* at = static_cast<char*>(bytes);
  while (size > 0) {
    ssize_t n = out ? ::send(fd, at, size, MSG_NOSIGNAL) : ::recv(fd, at, size, 0);
    if (n <= 0 && errno != EINTR) die("the other process");
    at += std::max<ssize_t>(n, 0);
    size -= static_cast<std::size_t>(std::max<ssize_t>(n, 0));
  }
}

}  // namespace

Control::Control(Control&& other) noexcept
    : fd_(other.fd_),
      gone_(other.gone_),
      outgoing_(std::move(other.outgoing_)),
      incoming_(std::move(other.incoming_)) {
  other.fd_ = -1;
}

Control::~Control() {
  if (fd_ >= 0) ::close(fd_);
}

void Control::say(const Message& message) {
  const auto* bytes = reinterpret_cast<const char*>(&message);
  outgoing_.insert(outgoing_.end(), bytes, bytes + sizeof(message));
  push();
}

void Control::push() {
  while (!outgoing_.empty() && !gone_) {
    char part[2048];
    const std::size_t size = std::min(sizeof(part), outgoing_.size());
    std::copy_n(outgoing_.begin(), size, part);
    const ssize_t n = ::send(fd_, part, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) gone_ = true;
    if (n <= 0) return;
    outgoing_.erase(outgoing_.begin(), outgoing_.begin() + n);
  }
}

bool Control::hear(Message* message) {
  push();
  if (incoming_.size() < sizeof(Message) && !gone_) {
    char part[4096];
    const ssize_t n = ::recv(fd_, part, sizeof(part), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) gone_ = true;
    if (n > 0) incoming_.insert(incoming_.end(), part, part + n);
  }
  if (incoming_.size() < sizeof(Message)) return false;
  std::copy_n(incoming_.begin(), sizeof(Message), reinterpret_cast<char*>(message));
  incoming_.erase(incoming_.begin(), incoming_.begin() + sizeof(Message));
  return true;
}

std::vector<End> meet(const std::string& area, int rank, int processes, const std::vector<Connection>& all) {
  std::vector<End> ends;
  int port = 0, awaited = 0;
  const int listener = listen_anywhere(static_cast<int>(all.size()) + 1, &port);
  publish_port(area, rank, port);
  for (const Connection& c : all) awaited += c.peers[0] == rank && c.peers[1] != rank;
  for (const Connection& c : all) {
    if (c.peers[0] == rank && c.peers[1] == rank) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) die("socketpair");
      for (int side = 0; side < 2; ++side) ends.push_back({c, side, pair[side]});
    } else if (c.peers[1] == rank) {
      const sockaddr_in there = loopback(await_port(area, c.peers[0]));
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) != 0) die("connect");
      std::int32_t index = c.index;
      all_of(fd, &index, sizeof(index), true);
      ends.push_back({c, 1, fd});
    }
  }
  for (; awaited > 0; --awaited) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    std::int32_t index = -1;
    if (fd < 0) die("accept");
    all_of(fd, &index, sizeof(index), false);
    ends.push_back({all.at(static_cast<std::size_t>(index)), 0, fd});
  }
  ::close(listener);
  if (rank >= processes) throw std::runtime_error("a rank beyond the number of processes");
  const int nodelay = 1;
  for (const End& end : ends) {
    never_wait(end.fd);
    ::setsockopt(end.fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof(nodelay));  // of no meaning to a socket pair
  }
  std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) {
    return a.connection.index != b.connection.index ? a.connection.index < b.connection.index : a.side < b.side;
  });
  return ends;
}

}  // namespace storm
