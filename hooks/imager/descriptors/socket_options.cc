#include "hooks/imager/descriptors/socket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <cstring>

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

namespace shadowib::descriptors {
namespace {

// By numbers, since headers of older systems lack some. Source: socket(7), tcp(7), ip(7), ipv6(7), udp(7), unix(7),
// and the kernel's include/uapi/{asm-generic/socket.h,linux/{in,in6,tcp,udp}.h}.
constexpr int kPreferBusyPoll = 69, kBusyPollBudget = 70, kTxRehash = 74, kRcvMark = 75, kPassPidFd = 76,
              kRcvPriority = 82, kPassRights = 83;
constexpr int kTcpTxDelay = 37, kTcpRtoMaxMs = 44, kTcpRtoMinUs = 45, kTcpDelackMaxUs = 46;
constexpr int kIpErrorExtension = 26, kIpLocalPortRange = 51, kIp6ErrorExtension = 31, kIp6MulticastAll = 29;

enum Scope : unsigned { kAny = 1, kTcpOnly = 2, kIp = 4, kIp6 = 8, kUnixOnly = 16, kUdpOnly = 32 };
// kEarly: before bind, connect or listen, and once more at the end. kEarlyWish: then or never.
enum Time : unsigned { kEarly, kEarlyWish, kLate };

struct Known {
  int level, name;
  unsigned scope;
  Time time;
};

constexpr Known kKnown[] = {
    {SOL_SOCKET, SO_REUSEPORT, kAny, kEarlyWish},
    {SOL_SOCKET, SO_BINDTODEVICE, kIp, kEarlyWish},
    {SOL_SOCKET, SO_MARK, kIp, kEarly},
    {IPPROTO_IPV6, IPV6_V6ONLY, kIp6, kEarlyWish},
    {IPPROTO_IPV6, IPV6_FREEBIND, kIp6, kEarlyWish},
    {IPPROTO_IPV6, IPV6_TRANSPARENT, kIp6, kEarly},
    {IPPROTO_IP, IP_FREEBIND, kIp, kEarlyWish},
    {IPPROTO_IP, IP_TRANSPARENT, kIp, kEarly},
    {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, kIp, kEarlyWish},
    {IPPROTO_IP, kIpLocalPortRange, kIp, kEarlyWish},
    {IPPROTO_TCP, TCP_DEFER_ACCEPT, kTcpOnly, kEarlyWish},
    {IPPROTO_TCP, TCP_CONGESTION, kTcpOnly, kEarly},
    {IPPROTO_TCP, TCP_SYNCNT, kTcpOnly, kEarly},
    {IPPROTO_TCP, TCP_SAVE_SYN, kTcpOnly, kEarlyWish},
    {SOL_SOCKET, SO_REUSEADDR, kAny, kLate},
    {SOL_SOCKET, SO_KEEPALIVE, kAny, kLate},
    {SOL_SOCKET, SO_LINGER, kAny, kLate},
    {SOL_SOCKET, SO_RCVTIMEO, kAny, kLate},
    {SOL_SOCKET, SO_SNDTIMEO, kAny, kLate},
    {SOL_SOCKET, SO_BROADCAST, kAny, kLate},
    {SOL_SOCKET, SO_OOBINLINE, kAny, kLate},
    {SOL_SOCKET, SO_DONTROUTE, kAny, kLate},
    {SOL_SOCKET, SO_TIMESTAMP, kAny, kLate},
    {SOL_SOCKET, SO_TIMESTAMPNS, kAny, kLate},
    {SOL_SOCKET, SO_TIMESTAMPING, kAny, kLate},
    {SOL_SOCKET, SO_RCVLOWAT, kAny, kLate},
    {SOL_SOCKET, SO_RXQ_OVFL, kAny, kLate},
    {SOL_SOCKET, SO_SELECT_ERR_QUEUE, kAny, kLate},
    {SOL_SOCKET, SO_LOCK_FILTER, kAny, kLate},
    {SOL_SOCKET, SO_BUSY_POLL, kIp, kLate},
    {SOL_SOCKET, kPreferBusyPoll, kIp, kLate},
    {SOL_SOCKET, kBusyPollBudget, kIp, kLate},
    {SOL_SOCKET, SO_MAX_PACING_RATE, kIp, kLate},
    {SOL_SOCKET, SO_TXTIME, kUdpOnly, kLate},
    {SOL_SOCKET, SO_ZEROCOPY, kTcpOnly | kUdpOnly, kLate},
    {SOL_SOCKET, kTxRehash, kTcpOnly, kLate},
    {SOL_SOCKET, kRcvMark, kIp, kLate},
    {SOL_SOCKET, kRcvPriority, kIp, kLate},
    {SOL_SOCKET, SO_PASSCRED, kUnixOnly, kLate},
    {SOL_SOCKET, SO_PASSSEC, kUnixOnly, kLate},
    {SOL_SOCKET, kPassPidFd, kUnixOnly, kLate},
    {SOL_SOCKET, kPassRights, kUnixOnly, kLate},
    {SOL_SOCKET, SO_PEEK_OFF, kUnixOnly | kUdpOnly, kLate},
    {IPPROTO_TCP, TCP_NODELAY, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_CORK, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_KEEPIDLE, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_KEEPINTVL, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_KEEPCNT, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_LINGER2, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_FASTOPEN, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_FASTOPEN_CONNECT, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_INQ, kTcpOnly, kLate},
    {IPPROTO_TCP, kTcpTxDelay, kTcpOnly, kLate},
    {IPPROTO_TCP, kTcpRtoMaxMs, kTcpOnly, kLate},
    {IPPROTO_TCP, kTcpRtoMinUs, kTcpOnly, kLate},
    {IPPROTO_TCP, kTcpDelackMaxUs, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_QUICKACK, kTcpOnly, kLate},
    {IPPROTO_IP, IP_TOS, kIp, kLate},
    {IPPROTO_IP, IP_TTL, kIp, kLate},
    {IPPROTO_IP, IP_MTU_DISCOVER, kIp, kLate},
    {IPPROTO_IP, IP_RECVERR, kIp, kLate},
    {IPPROTO_IP, kIpErrorExtension, kIp, kLate},
    {IPPROTO_IP, IP_PKTINFO, kIp, kLate},
    {IPPROTO_IP, IP_RECVTTL, kIp, kLate},
    {IPPROTO_IP, IP_RECVTOS, kIp, kLate},
    {IPPROTO_IP, IP_RECVOPTS, kIp, kLate},
    {IPPROTO_IP, IP_RETOPTS, kIp, kLate},
    {IPPROTO_IP, IP_OPTIONS, kIp, kLate},
    {IPPROTO_IP, IP_PASSSEC, kIp, kLate},
    {IPPROTO_IP, IP_ORIGDSTADDR, kIp, kLate},
    {IPPROTO_IP, IP_MINTTL, kIp, kLate},
    {IPPROTO_IP, IP_CHECKSUM, kIp, kLate},
    {IPPROTO_IP, IP_RECVFRAGSIZE, kIp, kLate},
    {IPPROTO_IP, IP_UNICAST_IF, kIp, kLate},
    {IPPROTO_IP, IP_MULTICAST_TTL, kUdpOnly, kLate},
    {IPPROTO_IP, IP_MULTICAST_LOOP, kUdpOnly, kLate},
    {IPPROTO_IP, IP_MULTICAST_IF, kUdpOnly, kLate},
    {IPPROTO_IP, IP_MULTICAST_ALL, kUdpOnly, kLate},
    {IPPROTO_IPV6, IPV6_TCLASS, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVTCLASS, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_MULTICAST_HOPS, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_MULTICAST_LOOP, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_MULTICAST_IF, kIp6, kLate},
    {IPPROTO_IPV6, kIp6MulticastAll, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_UNICAST_IF, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_MTU_DISCOVER, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_DONTFRAG, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_MINHOPCOUNT, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVERR, kIp6, kLate},
    {IPPROTO_IPV6, kIp6ErrorExtension, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVHOPLIMIT, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVRTHDR, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVHOPOPTS, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVDSTOPTS, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVPATHMTU, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVORIGDSTADDR, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVFRAGSIZE, kIp6, kLate},
    {SOL_SOCKET, SO_PRIORITY, kAny, kLate},  // which IP_TOS changes
    {IPPROTO_UDP, UDP_CORK, kUdpOnly, kLate},
    {IPPROTO_UDP, UDP_SEGMENT, kUdpOnly, kLate},
    {IPPROTO_UDP, UDP_GRO, kUdpOnly, kLate},
    {IPPROTO_UDP, UDP_NO_CHECK6_TX, kUdpOnly, kLate},
    {IPPROTO_UDP, UDP_NO_CHECK6_RX, kUdpOnly, kLate},
    // The sizes count only where SO_BUF_LOCK says that the program chose them.
    {SOL_SOCKET, SO_BUF_LOCK, kAny, kLate},
    {SOL_SOCKET, SO_SNDBUF, kAny, kLate},
    {SOL_SOCKET, SO_RCVBUF, kAny, kLate},
};

const Known* find_known(const Option& option) {
  for (const Known& known : kKnown)
    if (known.level == option.level && known.name == option.name) return &known;
  return nullptr;
}

int int_of(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof(value);
  return ::getsockopt(fd, level, name, &value, &length) == 0 ? value : 0;
}

bool differs(int fd, const Option& option) {
  char now[64];
  socklen_t length = sizeof(now);
  if (::getsockopt(fd, option.level, option.name, now, &length) != 0) return true;
  return length != option.value.size() || std::memcmp(now, option.value.data(), length) != 0;
}

bool set_option(int fd, const Option& option) {
  if (!differs(fd, option)) return true;
  return ::setsockopt(fd, option.level, option.name, option.value.data(),
                      static_cast<socklen_t>(option.value.size())) == 0;
}

// getsockopt tells twice what was set; a kernel limit lower than it was is not worth a word. A size that the kernel
// adapts is put back, too, and left to the kernel again: kernels before 5.15 cannot do so.
void set_buffer(int fd, const std::vector<Option>& options, int name, int lock_bit) {
  const int bytes = recorded_option(options, SOL_SOCKET, name, 0);
  const int lock = recorded_option(options, SOL_SOCKET, SO_BUF_LOCK, -1);
  if ((lock & lock_bit) == 0 &&
      (int_of(fd, SOL_SOCKET, name) == bytes || ::setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof(lock)) != 0))
    return;
  if (lock < 0) return;
  const int half = bytes / 2;
  ::setsockopt(fd, SOL_SOCKET, name, &half, sizeof(half));
  if ((lock & lock_bit) == 0) ::setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof(lock));
}

}  // namespace

void record_options(int fd, int domain, Kind kind, std::vector<Option>* options) {
  unsigned scope = kAny | (kind == Kind::kTcp ? kTcpOnly : 0u) | (kind == Kind::kUnix ? kUnixOnly : 0u) |
                   (kind == Kind::kUdp ? kUdpOnly : 0u) | (domain == AF_INET || domain == AF_INET6 ? kIp : 0u) |
                   (domain == AF_INET6 ? kIp6 : 0u);
  for (const Known& known : kKnown) {
    if ((known.scope & scope) == 0) continue;
    char value[64];
    socklen_t length = sizeof(value);
    if (::getsockopt(fd, known.level, known.name, value, &length) == 0 && length <= sizeof(value))
      options->push_back({known.level, known.name, std::string(value, length)});
  }
}

void apply_early_options(int fd, const std::vector<Option>& options) {
  for (const Option& option : options) {
    const Known* known = find_known(option);
    if (known != nullptr && known->time != kLate) set_option(fd, option);
  }
}

const Option* apply_options(int fd, const std::vector<Option>& options) {
  const Option* failed = nullptr;
  for (const Option& option : options) {
    const Known* known = find_known(option);
    if (known == nullptr || known->time == kEarlyWish) continue;
    if (option.level == SOL_SOCKET &&
        (option.name == SO_SNDBUF || option.name == SO_RCVBUF || option.name == SO_BUF_LOCK))
      continue;
    if (!set_option(fd, option) && failed == nullptr) failed = &option;
  }
  set_buffer(fd, options, SO_SNDBUF, 1);
  set_buffer(fd, options, SO_RCVBUF, 2);
  return failed;
}

ReceiveBuffer::ReceiveBuffer(int fd)
    : fd_(fd),
      bytes_(int_of(fd, SOL_SOCKET, SO_RCVBUF)),
      clamp_(int_of(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP)),
      lock_(int_of(fd, SOL_SOCKET, SO_BUF_LOCK)) {}

void ReceiveBuffer::put_back() const {
  constexpr int kReceiveLock = 2;  // SOCK_RCVBUF_LOCK
  // Kernels before 5.15 cannot give a size back to the kernel's care.
  if ((lock_ & kReceiveLock) != 0 || ::setsockopt(fd_, SOL_SOCKET, SO_BUF_LOCK, &lock_, sizeof(lock_)) != 0) return;
  const int half = bytes_ / 2;
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &half, sizeof(half));
  ::setsockopt(fd_, SOL_SOCKET, SO_BUF_LOCK, &lock_, sizeof(lock_));
  if (clamp_ != 0) ::setsockopt(fd_, IPPROTO_TCP, TCP_WINDOW_CLAMP, &clamp_, sizeof(clamp_));
}

int recorded_option(const std::vector<Option>& options, int level, int name, int otherwise) {
  for (const Option& option : options)
    if (option.level == level && option.name == name && option.value.size() >= sizeof(int)) {
      int value;
      std::memcpy(&value, option.value.data(), sizeof(value));
      return value;
    }
  return otherwise;
}

}  // namespace shadowib::descriptors
