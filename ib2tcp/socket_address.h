// IP addresses as sockets take them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

#include "shadowib/base/networks.h"

namespace shadowib::ib2tcp {

class SocketAddress {
 public:
  SocketAddress(const IpAddress& address, std::uint16_t port) {
    if (is_ipv4(address)) {
      ipv4_.sin_family = AF_INET;
      ipv4_.sin_port = htons(port);
      std::memcpy(&ipv4_.sin_addr, address.data() + 12, 4);
    } else {
      ipv6_.sin6_family = AF_INET6;
      ipv6_.sin6_port = htons(port);
      std::memcpy(&ipv6_.sin6_addr, address.data(), 16);
    }
  }
  int family() const { return get()->sa_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&ipv6_); }
  socklen_t bytes() const { return family() == AF_INET ? sizeof(ipv4_) : sizeof(ipv6_); }

 private:
  union {
    sockaddr_in ipv4_;
    sockaddr_in6 ipv6_{};
  };
};

// With port 0, for connecting: the kernel chooses a port when it knows the other end.
inline bool bind_to(int fd, const IpAddress& address, std::uint16_t port) {
  const SocketAddress from(address, port);
  const int on = 1;
  if (port == 0) ::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
  return ::bind(fd, from.get(), from.bytes()) == 0;
}

}  // namespace shadowib::ib2tcp
