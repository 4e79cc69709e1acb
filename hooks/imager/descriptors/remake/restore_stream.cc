// Bytes in flight go back in flight: sent again through the proper end, before any member runs.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <climits>

#include "hooks/imager/descriptors/remake/restore.h"
#include "hooks/imager/descriptors/socket_options.h"
#include "shadowib/base/lock.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

namespace shadowib::descriptors {
namespace {

constexpr std::int64_t kLimitNs = 10'000'000'000;

// Makes the receiver announce a window that has grown.
void announce_window(int fd) {
  char byte;
  (void)::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
}

bool wait_writable(int from, int to, std::int64_t deadline) {
  announce_window(to);
  pollfd p{from, POLLOUT, 0};
  ::poll(&p, 1, 20);
  return monotonic_ns() < deadline;
}

Status send_all(int from, int to, const std::string& data, const Object& receiver, std::int64_t deadline) {
  for (std::size_t sent = 0; sent < data.size();) {
    ssize_t n = ::send(from, data.data() + sent, data.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS) {
      return restore_failure(Code::kRefused, receiver, "its bytes in flight cannot be sent again", errno);
    } else if (!wait_writable(from, to, deadline)) {
      return restore_failure(Code::kRefused, receiver,
                             "its bytes in flight do not fit; raise net.ipv4.tcp_rmem or net.core.wmem_max", 0);
    }
  }
  return {};
}

// Until every byte is in the receiver's queue: a member that peeks at once must find them.
Status await_arrival(int to, std::size_t bytes, const Object& receiver, std::int64_t deadline) {
  for (;;) {
    int arrived = 0;
    ::ioctl(to, SIOCINQ, &arrived);
    if (static_cast<std::size_t>(arrived) == bytes) return {};
    if (monotonic_ns() > deadline || static_cast<std::size_t>(arrived) > bytes)
      return restore_failure(Code::kRefused, receiver, "its bytes in flight did not arrive whole", 0);
    announce_window(to);
    ::poll(nullptr, 0, 1);
  }
}

std::size_t queued_bytes(const Object& o) {
  std::size_t total = 0;
  for (const Message& m : o.queue) total += m.data.size();
  return total;
}

void set(int fd, int name, int value) { ::setsockopt(fd, SOL_SOCKET, name, &value, sizeof(value)); }

}  // namespace

MoreRoom::MoreRoom(int from, int to, Kind kind) : from_(from), to_(to), kind_(kind), buffer_(to) {
  if (kind_ == Kind::kTcp) {
    set(to_, SO_RCVLOWAT, INT_MAX);  // enlarges an automatic receive buffer: tcp_set_rcvlowat
    return;
  }
  socklen_t length = sizeof(size_);
  ::getsockopt(from_, SOL_SOCKET, SO_SNDBUF, &size_, &length);
  set(from_, SO_SNDBUF, INT_MAX / 2);
}

MoreRoom::~MoreRoom() {
  if (kind_ == Kind::kTcp) {
    set(to_, SO_RCVLOWAT, 1);
    buffer_.put_back();
    return;
  }
  set(from_, SO_SNDBUF, size_ / 2);
  set(from_, SO_BUF_LOCK, 0);
}

Status fill_apart(int fd, const Object& own, const Object& peer) {
  const std::int64_t deadline = monotonic_ns() + kLimitNs;
  MoreRoom room(fd, fd, Kind::kTcp);
  for (const Message& m : peer.queue) SHADOWIB_TRY(send_all(fd, fd, m.data, peer, deadline));
  return await_arrival(fd, queued_bytes(own), own, deadline);
}

Status fill_stream(int from, int to, const Object& receiver) {
  const std::size_t total = queued_bytes(receiver);
  if (total == 0) return {};
  std::int64_t deadline = monotonic_ns() + kLimitNs;
  MoreRoom room(from, to, receiver.kind);
  for (const Message& m : receiver.queue) SHADOWIB_TRY(send_all(from, to, m.data, receiver, deadline));
  return await_arrival(to, total, receiver, deadline);
}

}  // namespace shadowib::descriptors
