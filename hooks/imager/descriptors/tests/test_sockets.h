// Sockets for tests of descriptors: loopback addresses, listeners, connections, short messages.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

namespace shadowib::test {

sockaddr_in loopback(std::uint16_t port);

// The port of a socket's own (::getsockname) or its peer's (::getpeername) address.
std::uint16_t port_of(int fd, int (*query)(int, sockaddr*, socklen_t*));

// A TCP listener on any port of loopback (*port), or a connection to such a one, as descriptor `fd`; `domain` is
// AF_INET or AF_INET6. Returns fd, or -1 with errno.
int listen_tcp(int domain, int fd, std::uint16_t* port);
int connect_tcp(int domain, int fd, std::uint16_t port);

// Sends all of `text` at once; false with errno.
bool say(int fd, const std::string& text);

}  // namespace shadowib::test
