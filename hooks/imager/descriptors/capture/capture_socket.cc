// Sockets: what they are, where they lead, and how far they are shut down. Queues are in socket_queue.cc.
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "hooks/imager/descriptors/capture/capture.h"
#include "hooks/imager/descriptors/capture/refuse.h"
#include "hooks/imager/descriptors/capture/sock_diag.h"
#include "hooks/imager/descriptors/socket_options.h"
#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

int int_option(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof(value);
  return ::getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

std::string address_of(int fd, int (*query)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (query(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  // An unnamed Unix socket has a family and nothing else.
  if (address.ss_family == AF_UNIX && length <= offsetof(sockaddr_un, sun_path)) return {};
  return std::string(reinterpret_cast<char*>(&address), std::min<std::size_t>(length, sizeof(address)));
}

short poll_now(int fd, short events) {
  pollfd p{fd, events, 0};
  ::poll(&p, 1, 0);
  return p.revents;
}

Status refuse_socket(int fd, const Object& o, const char* why, int error = 0) {
  return refuse(fd, describe_object(o).c_str(), why, error);
}

// Sockets that people know by a name.
struct Stranger {
  int domain, protocol;  // -1: any
  const char* name;
  const char* remedy;  // nullptr: the usual one
};
constexpr int kMptcp = 262, kSmc = 43, kXdp = 44, kTipc = 30;
constexpr Stranger kStrangers[] = {
    {AF_INET, kMptcp, "Multipath TCP",
     "its paths cannot be saved; let the program use plain TCP (without mptcpize; for Go GODEBUG=multipathtcp=0)"},
    {AF_INET6, kMptcp, "Multipath TCP",
     "its paths cannot be saved; let the program use plain TCP (without mptcpize; for Go GODEBUG=multipathtcp=0)"},
    {kSmc, -1, "SMC", "its memory is the kernel's; let the program use plain TCP (without smc_run)"},
    {AF_INET, IPPROTO_SCTP, "SCTP", nullptr},
    {AF_INET6, IPPROTO_SCTP, "SCTP", nullptr},
    {AF_INET, IPPROTO_DCCP, "DCCP", nullptr},
    {AF_INET6, IPPROTO_DCCP, "DCCP", nullptr},
    {AF_INET, IPPROTO_UDPLITE, "UDP-Lite", nullptr},
    {AF_INET6, IPPROTO_UDPLITE, "UDP-Lite", nullptr},
    {AF_INET, IPPROTO_ICMP, "ping (ICMP)", nullptr},
    {AF_INET6, IPPROTO_ICMPV6, "ping (ICMPv6)", nullptr},
    {AF_RDS, -1, "RDS", nullptr},
    {AF_VSOCK, -1, "vsock (virtual machine)", nullptr},
    {AF_ALG, -1, "AF_ALG (kernel cryptography)", nullptr},
    {AF_BLUETOOTH, -1, "Bluetooth", nullptr},
    {AF_CAN, -1, "CAN bus", nullptr},
    {kTipc, -1, "TIPC", nullptr},
    {kXdp, -1, "AF_XDP", nullptr},
};

const Stranger* stranger(const Object& o) {
  for (const Stranger& s : kStrangers)
    if (s.domain == o.domain && (s.protocol == -1 || s.protocol == o.protocol)) return &s;
  return nullptr;
}

Status judge_type(int fd, Object* o) {
  bool inet = o->domain == AF_INET || o->domain == AF_INET6;
  char name[96];
  if (o->type == SOCK_RAW && o->domain != AF_NETLINK) {
    std::snprintf(name, sizeof(name), o->domain == AF_PACKET ? "packet socket" : "raw socket, protocol %d",
                  o->protocol);
    return refuse(fd, name, "its packets come from outside the job; close it before the checkpoint");
  }
  if (inet && o->type == SOCK_STREAM && o->protocol == IPPROTO_TCP) {
    o->kind = Kind::kTcp;
  } else if (inet && o->type == SOCK_DGRAM && o->protocol == IPPROTO_UDP) {
    o->kind = Kind::kUdp;
  } else if (o->domain == AF_UNIX) {
    o->kind = Kind::kUnix;
  } else if (o->domain == AF_NETLINK) {
    o->kind = Kind::kNetlink;
  } else {
    const Stranger* known = stranger(*o);
    if (known != nullptr)
      std::snprintf(name, sizeof(name), "%s socket", known->name);
    else
      std::snprintf(name, sizeof(name), "socket of family %d, type %d, protocol %d", o->domain, o->type, o->protocol);
    return refuse(fd, name,
                  known != nullptr && known->remedy != nullptr
                      ? known->remedy
                      : "sockets of this type cannot be saved; close it before the checkpoint");
  }
  socklen_t filter = 0;
  if (::getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, nullptr, &filter) == 0 && filter > 0)
    return refuse_socket(fd, *o, "it has a BPF filter attached; detach it before the checkpoint");
  return {};
}

Status capture_tcp_listener(int fd, const tcp_info& info, Object* o) {
  o->state = SocketState::kListening;
  o->backlog = static_cast<int>(info.tcpi_sacked);
  if (info.tcpi_unacked != 0)
    return refuse_socket(fd, *o, "connections wait in its backlog; accept them before the checkpoint", EAGAIN);
  return {};
}

// Both directions are over: the socket has no addresses any more, only what is left to read.
Status capture_finished_tcp(int fd, short polled, Object* o) {
  o->state = SocketState::kFinished;
  o->peer_shut = o->shut_write = 1;
  o->counterpart_gone = 1;
  o->error_pending = (polled & POLLERR) != 0;
  return capture_socket_queue(fd, o);
}

Status capture_tcp_connection(int fd, const tcp_info& info, short polled, Object* o) {
  o->state = SocketState::kConnected;
  int state = info.tcpi_state;
  o->shut_write = state == TCP_FIN_WAIT1 || state == TCP_FIN_WAIT2 || state == TCP_CLOSING || state == TCP_LAST_ACK;
  o->peer_shut = state == TCP_CLOSE_WAIT || state == TCP_LAST_ACK || state == TCP_CLOSING;
  o->shut_read = !o->peer_shut && (polled & POLLRDHUP) != 0;
  int unsent = 0;
  if (::ioctl(fd, SIOCOUTQ, &unsent) == 0 && unsent > 0) o->undrained = static_cast<std::uint64_t>(unsent);
  if ((polled & POLLPRI) != 0) return refuse_socket(fd, *o, "urgent data waits on it; read it before the checkpoint");
  char protocol[32] = "";
  socklen_t length = sizeof(protocol) - 1;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_ULP, protocol, &length) == 0 && length > 0 && protocol[0] != '\0')
    return refuse_socket(fd, *o, "an upper layer protocol (kernel TLS) runs on it; close it before the checkpoint");
  if (o->peer_shut) o->counterpart_gone = diagnose_tcp_peer(o->local, o->remote, o->inode) == TcpPeer::kGone;
  return capture_socket_queue(fd, o);
}

Status capture_tcp(int fd, Object* o) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
    return refuse_socket(fd, *o, "the kernel does not tell its state; close it before the checkpoint");
  short polled = poll_now(fd, POLLIN | POLLPRI | POLLRDHUP);
  switch (info.tcpi_state) {
    case TCP_LISTEN:
      return capture_tcp_listener(fd, info, o);
    case TCP_CLOSE:
      if ((polled & POLLRDHUP) != 0) return capture_finished_tcp(fd, polled, o);
      return {};
    case TCP_SYN_SENT:
    case TCP_SYN_RECV:
      return refuse_socket(fd, *o, "it is still connecting; wait for the connection before the checkpoint", EAGAIN);
    default:
      return capture_tcp_connection(fd, info, polled, o);
  }
}

// A datagram has no connection that could be broken off, but a queued one would be lost.
Status capture_udp(int fd, Object* o) {
  if (poll_now(fd, POLLIN) & (POLLIN | POLLERR))
    return refuse_socket(fd, *o, "datagrams or errors wait on it; receive them before the checkpoint", EAGAIN);
  return {};
}

Status capture_netlink(int fd, Object* o) {
  sockaddr_nl address{};
  if (o->local.size() >= sizeof(address)) std::memcpy(&address, o->local.data(), sizeof(address));
  if (address.nl_pid != 0 || address.nl_groups != 0 || (poll_now(fd, POLLIN) & POLLIN) != 0)
    return refuse(fd, "netlink socket", "it is bound to the kernel's answers; close it before the checkpoint",
                  EAGAIN);
  o->local.clear();
  o->remote.clear();
  return {};
}

Status capture_unix_listener(int fd, const UnixDiag& diag, Object* o) {
  o->state = SocketState::kListening;
  o->backlog = static_cast<int>(diag.backlog);
  if (diag.pending != 0)
    return refuse_socket(fd, *o, "connections wait in its backlog; accept them before the checkpoint", EAGAIN);
  return {};
}

bool name_in_file_system(const std::string& address, std::uint32_t inode) {
  std::size_t start = offsetof(sockaddr_un, sun_path);
  if (address.size() <= start || address[start] == '\0') return false;
  struct stat st {};
  std::string path = address.substr(start);
  return ::stat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode) && static_cast<std::uint32_t>(st.st_ino) == inode;
}

Status capture_unix(int fd, Object* o) {
  UnixDiag diag = diagnose_unix(o->inode);
  if (!diag.found)
    return refuse_socket(
        fd, *o,
        "the kernel does not tell its peer (CONFIG_UNIX_DIAG, or another network namespace); close it "
        "before the checkpoint");
  o->path_present = name_in_file_system(o->local, diag.file_inode);
  if (o->path_present) {
    struct stat st {};
    ::stat(o->local.c_str() + offsetof(sockaddr_un, sun_path), &st);
    o->mode = st.st_mode;
  }
  if (int_option(fd, SOL_SOCKET, SO_ACCEPTCONN) > 0) return capture_unix_listener(fd, diag, o);
  if (diag.has_peer) {
    o->state = SocketState::kConnected;
    o->peer_inode = diag.peer_inode;
    o->counterpart_gone = diag.peer_inode == 0;
    // The kernel's flags do not tell who shut down; match_descriptors looks at both ends.
    o->shut_read = diag.shutdown & 1;
    o->shut_write = (diag.shutdown & 2) != 0;
  }
  o->error_pending = (poll_now(fd, 0) & POLLERR) != 0;
  if (o->counterpart_gone && o->type != SOCK_DGRAM) {
    // Embryo of a listener's backlog or a closed peer: only the latter has shut us down.
    if (diag.shutdown != 3)
      return refuse_socket(fd, *o, "its connection has not been accepted yet; accept it before the checkpoint");
    o->shut_read = o->shut_write = 0;
    o->peer_shut = 1;
  }
  return capture_socket_queue(fd, o);
}

}  // namespace

Status capture_socket(int fd, Object* o) {
  o->kind = Kind::kUnix;
  o->domain = int_option(fd, SOL_SOCKET, SO_DOMAIN);
  o->type = int_option(fd, SOL_SOCKET, SO_TYPE);
  o->protocol = int_option(fd, SOL_SOCKET, SO_PROTOCOL);
  o->local = address_of(fd, ::getsockname);
  o->remote = address_of(fd, ::getpeername);
  SHADOWIB_TRY(judge_type(fd, o));
  record_options(fd, o->domain, o->kind, &o->options);
  switch (o->kind) {
    case Kind::kTcp:
      return capture_tcp(fd, o);
    case Kind::kUdp:
      return capture_udp(fd, o);
    case Kind::kNetlink:
      return capture_netlink(fd, o);
    default:
      return capture_unix(fd, o);
  }
}

}  // namespace shadowib::descriptors
