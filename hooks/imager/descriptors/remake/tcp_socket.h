// TCP sockets and their addresses, as the restart makes them. Addresses are sockaddr_in or sockaddr_in6, by their
// bytes.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>

#include "hooks/imager/descriptors/remake/restore.h"

namespace shadowib::descriptors {

std::string with_port(std::string address, std::uint16_t port);
std::uint16_t port_of(const std::string& address);
std::string loopback(int domain);
int domain_of(const std::string& address);
// The address of a socket: `query` is getsockname or getpeername.
std::string own_address(int fd, int (*query)(int, sockaddr*, socklen_t*));
// `call` is bind or connect.
int call_with(int (*call)(int, const sockaddr*, socklen_t), int fd, const std::string& address);

// A socket whose address may be used by others too; of IPv6 both families reach it. Close-on-exec.
int new_stream(int domain);
// `target` as a socket of that domain names it: an IPv6 socket reaches an IPv4 listener by its mapped address.
std::string address_for(int domain, const std::string& target);

// Connections whose other end is made by another part of the restart (Plan::apart): with the meeting both parts have,
// bytes in flight and shutdowns included. `made` takes each descriptor.
Status connect_apart(const Plan& plan, const std::function<void(const Object&, int)>& made);

}  // namespace shadowib::descriptors
