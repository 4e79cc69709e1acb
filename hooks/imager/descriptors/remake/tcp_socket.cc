#include "hooks/imager/descriptors/remake/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cstddef>
#include <cstring>

#include "hooks/imager/descriptors/match/match.h"

namespace shadowib::descriptors {

std::string with_port(std::string address, std::uint16_t port) {
  // sin_port and sin6_port stand at the same place.
  std::uint16_t network = htons(port);
  std::memcpy(address.data() + offsetof(sockaddr_in, sin_port), &network, sizeof(network));
  return address;
}

std::uint16_t port_of(const std::string& address) {
  std::uint16_t port = 0;
  if (address.size() >= sizeof(sockaddr_in)) std::memcpy(&port, address.data() + offsetof(sockaddr_in, sin_port), 2);
  return ntohs(port);
}

std::string loopback(int domain) {
  if (domain == AF_INET) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return std::string(reinterpret_cast<char*>(&in), sizeof(in));
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_addr = in6addr_loopback;
  return std::string(reinterpret_cast<char*>(&in), sizeof(in));
}

std::string own_address(int fd, int (*query)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (query(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  return std::string(reinterpret_cast<char*>(&address), length);
}

int call_with(int (*call)(int, const sockaddr*, socklen_t), int fd, const std::string& address) {
  return call(fd, reinterpret_cast<const sockaddr*>(address.data()), static_cast<socklen_t>(address.size()));
}

int domain_of(const std::string& address) { return address.size() == sizeof(sockaddr_in) ? AF_INET : AF_INET6; }

int new_stream(int domain) {
  int fd = ::socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  int one = 1, zero = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (domain == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  return fd;
}

std::string address_for(int domain, const std::string& target) {
  if (domain == domain_of(target)) return target;
  const std::string key = endpoint_key(target);
  if (domain == AF_INET6) {
    sockaddr_in6 mapped{};
    mapped.sin6_family = AF_INET6;
    std::memcpy(&mapped.sin6_addr, key.data(), 16);
    std::memcpy(&mapped.sin6_port, key.data() + 16, 2);
    return std::string(reinterpret_cast<char*>(&mapped), sizeof(mapped));
  }
  sockaddr_in plain{};
  plain.sin_family = AF_INET;
  std::memcpy(&plain.sin_addr, key.data() + 12, 4);
  std::memcpy(&plain.sin_port, key.data() + 16, 2);
  return std::string(reinterpret_cast<char*>(&plain), sizeof(plain));
}

}  // namespace shadowib::descriptors
