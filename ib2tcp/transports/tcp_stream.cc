// Plain non-blocking TCP sockets: header and small payloads in one write, large payloads straight from and to the
// program's memory.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "ib2tcp/as_adapter.h"
#include "ib2tcp/host.h"
#include "ib2tcp/transport.h"
#include "ib2tcp/transports/peer_silence.h"
#include "shadowib/base/lock.h"

namespace shadowib::ib2tcp {
namespace {

constexpr StreamTraits kTraits = {.name = "tcp", .copy_limit = 4096, .read_ahead = true, .memory_readable = false};

class TcpStream final : public Stream {
 public:
  explicit TcpStream(int fd) : fd_(fd) {
    int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    // A host that vanished is noticed while idle; with data under way has_lost_peer() tells.
    int idle = 10, interval = 5, probes = 6;
    ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  }
  ~TcpStream() override { close(); }

  const StreamTraits& traits() const override { return kTraits; }

  ssize_t writev(const iovec* parts, int count) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<std::size_t>(count);
    const AsAdapter unseen;
    return result(::sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  ssize_t readv(const iovec* parts, int count) override {
    const AsAdapter unseen;
    ssize_t n;
    if (count == 1) {
      n = ::recv(fd_, parts[0].iov_base, parts[0].iov_len, MSG_DONTWAIT);
    } else {
      msghdr message{};
      message.msg_iov = const_cast<iovec*>(parts);
      message.msg_iovlen = static_cast<std::size_t>(count);
      n = ::recvmsg(fd_, &message, MSG_DONTWAIT);
    }
    if (n == 0) {
      errno = EPIPE;
      return -1;
    }
    return result(n);
  }

  bool readable() override { return true; }
  int fd() const override { return fd_; }
  bool poll_writes() const override { return true; }
  bool prepare_sleep(bool) override { return true; }  // epoll is level-triggered: what is there wakes at once
  void wake_up() override {}
  void on_fd_ready() override {}

  bool has_lost_peer(std::uint32_t patience_ms) override {
    tcp_info info{};
    socklen_t bytes = sizeof(info);
    return ::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 &&
           silence_.is_lasting(info, monotonic_ns() / 1'000'000, patience_ms);
  }

  void close() override {
    if (fd_ >= 0) g_host->close_descriptor(fd_);
    fd_ = -1;
  }

 private:
  static ssize_t result(ssize_t n) {
    if (n >= 0) return n;
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS) return 0;
    if (errno != EFAULT) errno = EPIPE;
    return -1;
  }
  int fd_;
  PeerSilence silence_;
};

}  // namespace

Stream* make_tcp_stream(int fd) { return new TcpStream(fd); }

}  // namespace shadowib::ib2tcp
