#include "hooks/imager/descriptors/socket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

namespace shadowib::descriptors {
namespace {

enum Scope : unsigned { kAny = 1, kTcpOnly = 2, kIp = 4, kIp6 = 8, kUnixOnly = 16, kUdpOnly = 32 };
enum Time : unsigned { kEarly, kLate };

struct Known {
  int level, name;
  unsigned scope;
  Time time;
};

constexpr Known kKnown[] = {
    {SOL_SOCKET, SO_REUSEPORT, kAny, kEarly},
    {SOL_SOCKET, SO_BINDTODEVICE, kIp, kEarly},
    {IPPROTO_IPV6, IPV6_V6ONLY, kIp6, kEarly},
    {IPPROTO_IP, IP_FREEBIND, kIp, kEarly},
    {IPPROTO_TCP, TCP_DEFER_ACCEPT, kTcpOnly, kEarly},
    {IPPROTO_TCP, TCP_CONGESTION, kTcpOnly, kEarly},
    {SOL_SOCKET, SO_REUSEADDR, kAny, kLate},
    {SOL_SOCKET, SO_KEEPALIVE, kAny, kLate},
    {SOL_SOCKET, SO_LINGER, kAny, kLate},
    {SOL_SOCKET, SO_RCVTIMEO, kAny, kLate},
    {SOL_SOCKET, SO_SNDTIMEO, kAny, kLate},
    {SOL_SOCKET, SO_BROADCAST, kAny, kLate},
    {SOL_SOCKET, SO_OOBINLINE, kAny, kLate},
    {SOL_SOCKET, SO_PRIORITY, kAny, kLate},
    {SOL_SOCKET, SO_DONTROUTE, kAny, kLate},
    {SOL_SOCKET, SO_TIMESTAMP, kAny, kLate},
    {SOL_SOCKET, SO_RCVLOWAT, kAny, kLate},
    {SOL_SOCKET, SO_PASSCRED, kUnixOnly, kLate},
    {SOL_SOCKET, SO_PEEK_OFF, kUnixOnly, kLate},
    {IPPROTO_TCP, TCP_NODELAY, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_CORK, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_KEEPIDLE, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_KEEPINTVL, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_KEEPCNT, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_SYNCNT, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_LINGER2, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_USER_TIMEOUT, kTcpOnly, kLate},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT, kTcpOnly, kLate},
    {IPPROTO_IP, IP_TOS, kIp, kLate},
    {IPPROTO_IP, IP_TTL, kIp, kLate},
    {IPPROTO_IP, IP_MTU_DISCOVER, kIp, kLate},
    {IPPROTO_IP, IP_RECVERR, kIp, kLate},
    {IPPROTO_IP, IP_PKTINFO, kIp, kLate},
    {IPPROTO_IP, IP_MULTICAST_TTL, kUdpOnly, kLate},
    {IPPROTO_IP, IP_MULTICAST_LOOP, kUdpOnly, kLate},
    {IPPROTO_IPV6, IPV6_TCLASS, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, kIp6, kLate},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, kIp6, kLate},
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

// getsockopt tells twice what was set; a kernel limit lower than it was is not worth a word.
void set_buffer(int fd, const std::vector<Option>& options, int name, int lock_bit) {
  if ((recorded_option(options, SOL_SOCKET, SO_BUF_LOCK, 0) & lock_bit) == 0) return;
  int half = recorded_option(options, SOL_SOCKET, name, 0) / 2;
  ::setsockopt(fd, SOL_SOCKET, name, &half, sizeof(half));
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
    if (known != nullptr && known->time == kEarly) set_option(fd, option);
  }
}

const Option* apply_options(int fd, const std::vector<Option>& options) {
  const Option* failed = nullptr;
  for (const Option& option : options) {
    const Known* known = find_known(option);
    if (known == nullptr || known->time == kEarly) continue;
    if (option.level == SOL_SOCKET &&
        (option.name == SO_SNDBUF || option.name == SO_RCVBUF || option.name == SO_BUF_LOCK))
      continue;
    if (!set_option(fd, option) && failed == nullptr) failed = &option;
  }
  set_buffer(fd, options, SO_SNDBUF, 1);
  set_buffer(fd, options, SO_RCVBUF, 2);
  return failed;
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
