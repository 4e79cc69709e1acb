// Where listeners are: the connection manager's part of the exchange, and what IP addresses mean.
//
// Keys, below the epoch:
//   cm/listen/<port space>/<port>/<place>  -> Address of the listener's connection manager
//   cm/port/<port space>/<host>/<port>     -> member that holds the port
//   cm/host/<IP address>                   -> host
// where a place is an IP address, one of a host's own (127.0.0.1, fe80::) with that host behind it, or any-<host>. A
// host is a network namespace of a boot.
#pragma once

#include <netinet/in.h>

#include <cstdint>

#include "shadowib/base/status.h"
#include "shadowib/cm/message.h"

namespace shadowib::cm {

// IPv4 addresses stand in a sockaddr_in6 as a sockaddr_in would; these tell.
std::uint16_t port_of(const sockaddr_in6& address);  // host order
void set_port(sockaddr_in6* address, std::uint16_t port);
bool is_wildcard(const sockaddr_in6& address);
bool is_multicast(const sockaddr_in6& address);
bool same_ip(const sockaddr_in6& a, const sockaddr_in6& b);
sockaddr_in6 wildcard_like(const sockaddr_in6& address);

// Whether it is an address of this host.
bool is_local(const sockaddr_in6& address);
// The address from which the kernel would send there; 0 or an errno.
int route_to(const sockaddr_in6& destination, sockaddr_in6* source);

// Takes a port; EADDRINUSE if another member of this host has it. The ports of a dead member are free.
int claim_port(std::uint16_t port_space, std::uint16_t port);
// As claim_port, after a restart: the claim stands still if the member's cluster went back alone, in the same epoch.
int claim_port_again(std::uint16_t port_space, std::uint16_t port);
void release_port(std::uint16_t port_space, std::uint16_t port);

Status publish_listener(std::uint16_t port_space, const sockaddr_in6& bound, const Address& address);
void remove_listener(std::uint16_t port_space, const sockaddr_in6& bound);
// False: nobody listens there.
bool find_listener(std::uint16_t port_space, const sockaddr_in6& destination, Address* address);

}  // namespace shadowib::cm
