#include "hooks/imager/descriptors/capture/sock_diag.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

// Sends one request and receives its one answer; bytes received, or -1.
ssize_t ask(const void* request, std::size_t bytes, void* answer, std::size_t capacity) {
  int fd = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (fd < 0) return -1;
  timeval limit{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  ssize_t n = ::sendto(fd, request, bytes, 0, reinterpret_cast<sockaddr*>(&kernel), sizeof(kernel));
  if (n >= 0) n = ::recv(fd, answer, capacity, 0);
  raw_close(fd);
  return n;
}

// The payload of the answer if it is one of our family, else nullptr (an error, "no such socket").
template <typename Payload>
const Payload* payload(const char* answer, ssize_t bytes) {
  if (bytes < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(Payload)))) return nullptr;
  auto* header = reinterpret_cast<const nlmsghdr*>(answer);
  if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY || header->nlmsg_len > static_cast<std::size_t>(bytes))
    return nullptr;
  return reinterpret_cast<const Payload*>(NLMSG_DATA(header));
}

void read_attribute(const rtattr* attribute, UnixDiag* diag) {
  const void* data = RTA_DATA(attribute);
  std::size_t bytes = RTA_PAYLOAD(attribute);
  if (attribute->rta_type == UNIX_DIAG_PEER && bytes >= 4) {
    diag->has_peer = true;
    std::memcpy(&diag->peer_inode, data, 4);
  } else if (attribute->rta_type == UNIX_DIAG_SHUTDOWN && bytes >= 1) {
    std::memcpy(&diag->shutdown, data, 1);
  } else if (attribute->rta_type == UNIX_DIAG_RQLEN && bytes >= sizeof(unix_diag_rqlen)) {
    unix_diag_rqlen lengths;
    std::memcpy(&lengths, data, sizeof(lengths));
    diag->pending = lengths.udiag_rqueue;
    diag->backlog = lengths.udiag_wqueue;
  } else if (attribute->rta_type == UNIX_DIAG_VFS && bytes >= sizeof(unix_diag_vfs)) {
    unix_diag_vfs vfs;
    std::memcpy(&vfs, data, sizeof(vfs));
    diag->file_inode = vfs.udiag_vfs_ino;
  }
}

// Fills one direction of an inet_diag id. IPv4-mapped addresses become IPv4, as such a connection is IPv4 on the
// wire.
bool set_endpoint(const std::string& address, std::uint8_t* family, __be16* port, __be32* host) {
  if (address.size() == sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, address.data(), sizeof(in));
    *family = AF_INET;
    *port = in.sin_port;
    host[0] = in.sin_addr.s_addr;
    return true;
  }
  if (address.size() != sizeof(sockaddr_in6)) return false;
  sockaddr_in6 in;
  std::memcpy(&in, address.data(), sizeof(in));
  *port = in.sin6_port;
  if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {
    *family = AF_INET;
    std::memcpy(host, in.sin6_addr.s6_addr + 12, 4);
  } else {
    *family = AF_INET6;
    std::memcpy(host, in.sin6_addr.s6_addr, 16);
  }
  return true;
}

struct TcpAnswer {
  bool found = false;
  std::uint32_t inode = 0;
};

TcpAnswer look_up_tcp(const std::string& local, const std::string& remote) {
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } message{};
  message.header.nlmsg_len = sizeof(message);
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST;
  message.request.sdiag_protocol = IPPROTO_TCP;
  message.request.idiag_states = ~0u;
  inet_diag_sockid& id = message.request.id;
  std::uint8_t family = 0;
  if (!set_endpoint(local, &family, &id.idiag_sport, id.idiag_src) ||
      !set_endpoint(remote, &message.request.sdiag_family, &id.idiag_dport, id.idiag_dst) ||
      family != message.request.sdiag_family)
    return {};
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  alignas(8) char answer[4096];
  ssize_t bytes = ask(&message, sizeof(message), answer, sizeof(answer));
  auto* found = payload<inet_diag_msg>(answer, bytes);
  if (found == nullptr || found->idiag_state == TCP_LISTEN) return {};
  return {true, found->idiag_inode};
}

bool on_this_machine(const std::string& local, const std::string& remote) {
  std::uint8_t family = 0;
  __be16 port;
  __be32 host[4] = {}, own[4] = {};
  set_endpoint(local, &family, &port, own);
  set_endpoint(remote, &family, &port, host);
  if (std::memcmp(host, own, sizeof(host)) == 0) return true;
  if (family == AF_INET) return (ntohl(host[0]) >> 24) == 127;
  return host[0] == 0 && host[1] == 0 && host[2] == 0 && ntohl(host[3]) == 1;
}

}  // namespace

UnixDiag diagnose_unix(std::uint64_t inode) {
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } message{};
  message.header.nlmsg_len = sizeof(message);
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST;
  message.request.sdiag_family = AF_UNIX;
  message.request.udiag_states = ~0u;
  message.request.udiag_ino = static_cast<std::uint32_t>(inode);
  message.request.udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN | UDIAG_SHOW_VFS;
  message.request.udiag_cookie[0] = message.request.udiag_cookie[1] = ~0u;
  alignas(8) char answer[4096];
  UnixDiag diag;
  ssize_t bytes = ask(&message, sizeof(message), answer, sizeof(answer));
  auto* found = payload<unix_diag_msg>(answer, bytes);
  if (found == nullptr) return diag;
  diag.found = true;
  auto* attribute = reinterpret_cast<const rtattr*>(found + 1);
  int left = static_cast<int>(reinterpret_cast<const nlmsghdr*>(answer)->nlmsg_len) -
             static_cast<int>(NLMSG_LENGTH(sizeof(unix_diag_msg)));
  for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) read_attribute(attribute, &diag);
  return diag;
}

TcpPeer diagnose_tcp_peer(const std::string& local, const std::string& remote, std::uint64_t inode) {
  // Our own end must be found, else the kernel has no tcp_diag and "not found" means nothing.
  TcpAnswer own = look_up_tcp(local, remote);
  if (!own.found || own.inode != inode || !on_this_machine(local, remote)) return TcpPeer::kUnknown;
  TcpAnswer peer = look_up_tcp(remote, local);
  return peer.found && peer.inode != 0 ? TcpPeer::kHeld : TcpPeer::kGone;
}

}  // namespace shadowib::descriptors
