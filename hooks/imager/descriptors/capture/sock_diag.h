// Answers of the kernel about sockets beyond their own descriptor, by NETLINK_SOCK_DIAG. In-process: no program heap.
// Source: sock_diag(7).
#pragma once

#include <cstdint>
#include <string>

namespace shadowib::descriptors {

struct UnixDiag {
  bool found = false;  // false: no such socket here, or the kernel has no unix_diag
  bool has_peer = false;
  std::uint32_t peer_inode = 0;  // 0 although has_peer: the peer is closed, or not accepted yet
  std::uint8_t shutdown = 0;     // 1 receive, 2 send
  std::uint32_t pending = 0;     // listener: connections not accepted
  std::uint32_t backlog = 0;     // listener
  std::uint32_t file_inode = 0;  // of the bound path
};
UnixDiag diagnose_unix(std::uint64_t inode);

enum class TcpPeer { kHeld, kGone, kUnknown };
// Whether the other end of the connection local -> remote (sockaddr bytes) is on this machine and held by a
// descriptor. kUnknown: the kernel does not tell, or the other end is on another machine.
TcpPeer diagnose_tcp_peer(const std::string& local, const std::string& remote, std::uint64_t inode);

}  // namespace shadowib::descriptors
