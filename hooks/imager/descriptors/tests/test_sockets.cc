#include "hooks/imager/descriptors/tests/test_sockets.h"

#include <arpa/inet.h>

#include "hooks/imager/descriptors/tests/test_job.h"

namespace shadowib::test {
namespace {

sockaddr_in6 loopback6(std::uint16_t port) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  address.sin6_addr = in6addr_loopback;
  return address;
}

}  // namespace

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  in.sin_port = htons(port);
  return in;
}

std::uint16_t port_of(int fd, int (*query)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  query(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

int listen_tcp(int domain, int fd, std::uint16_t* port) {
  put(::socket(domain, SOCK_STREAM, 0), fd);
  sockaddr_in in = loopback(0);
  sockaddr_in6 in6 = loopback6(0);
  sockaddr* address = domain == AF_INET ? reinterpret_cast<sockaddr*>(&in) : reinterpret_cast<sockaddr*>(&in6);
  socklen_t length = domain == AF_INET ? sizeof(in) : sizeof(in6);
  if (::bind(fd, address, length) != 0 || ::listen(fd, 9) != 0) return -1;
  *port = port_of(fd, ::getsockname);
  return fd;
}

int connect_tcp(int domain, int fd, std::uint16_t port) {
  put(::socket(domain, SOCK_STREAM, 0), fd);
  sockaddr_in in = loopback(port);
  sockaddr_in6 in6 = loopback6(port);
  sockaddr* address = domain == AF_INET ? reinterpret_cast<sockaddr*>(&in) : reinterpret_cast<sockaddr*>(&in6);
  return ::connect(fd, address, domain == AF_INET ? sizeof(in) : sizeof(in6)) == 0 ? fd : -1;
}

bool say(int fd, const std::string& text) {
  return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

}  // namespace shadowib::test
