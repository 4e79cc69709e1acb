// The bytes that wait in a socket, by peeking: a resume finds them where they were.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "hooks/imager/descriptors/capture/capture.h"
#include "hooks/imager/descriptors/capture/refuse.h"
#include "hooks/raw/proc.h"

namespace shadowib::descriptors {
namespace {

// Peeks from the head of the queue on, each time further; gives the program's own offset back.
class PeekFromHead {
 public:
  explicit PeekFromHead(int fd) : fd_(fd) {
    socklen_t length = sizeof(before_);
    ::getsockopt(fd_, SOL_SOCKET, SO_PEEK_OFF, &before_, &length);
    int head = 0;
    ok_ = ::setsockopt(fd_, SOL_SOCKET, SO_PEEK_OFF, &head, sizeof(head)) == 0;
  }
  ~PeekFromHead() { ::setsockopt(fd_, SOL_SOCKET, SO_PEEK_OFF, &before_, sizeof(before_)); }
  PeekFromHead(const PeekFromHead&) = delete;
  PeekFromHead& operator=(const PeekFromHead&) = delete;
  bool ok() const { return ok_; }

 private:
  int fd_;
  int before_ = -1;
  bool ok_ = false;
};

bool program_passes_credentials(int fd) {
  int on = 0;
  socklen_t length = sizeof(on);
  return ::getsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, &length) == 0 && on != 0;
}

// One peek. There is no room for control data: the kernel then installs no descriptor and says MSG_CTRUNC.
ssize_t peek(int fd, std::string* data, int flags, std::string* source, bool* control) {
  iovec part{data->data(), data->size()};
  sockaddr_storage name{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_name = &name;
  message.msg_namelen = sizeof(name);
  ssize_t n = ::recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT | flags);
  *control = n >= 0 && (message.msg_flags & MSG_CTRUNC) != 0;
  if (n >= 0 && source != nullptr && message.msg_namelen > sizeof(sa_family_t))
    source->assign(reinterpret_cast<char*>(&name), message.msg_namelen);
  return n;
}

Status refuse_control(int fd, const Object& o) {
  return refuse(fd, ("SCM_RIGHTS, a descriptor in flight, on " + describe_object(o)).c_str(),
                program_passes_credentials(fd) ? "credentials wait in its queue; receive them before the checkpoint"
                                               : "receive it before the checkpoint");
}

Status capture_stream(int fd, Object* o) {
  PeekFromHead head(fd);
  if (!head.ok())
    return refuse(fd, describe_object(*o).c_str(),
                  "the kernel has no SO_PEEK_OFF for it; read what waits before the checkpoint");
  Message all;
  std::string chunk(1 << 16, '\0');
  for (;;) {
    bool control = false;
    ssize_t n = peek(fd, &chunk, 0, nullptr, &control);
    if (n > 0 && control) return refuse_control(fd, *o);
    if (n <= 0) break;
    all.data.append(chunk, 0, static_cast<std::size_t>(n));
  }
  if (!all.data.empty()) o->queue.push_back(std::move(all));
  return {};
}

// A peek by offset passes over empty datagrams that were peeked at before, so the head is looked at without offset.
bool empty_datagram_first(int fd) {
  int before = -1, off = -1;
  socklen_t length = sizeof(before);
  ::getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &before, &length);
  ::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &off, sizeof(off));
  char byte;
  ssize_t n = ::recv(fd, &byte, 1, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
  ::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &before, sizeof(before));
  return n == 0;
}

// The sender has closed its socket, or somebody has taken the name from the file system: no answer can reach it.
bool leads_nowhere(const std::string& name) {
  const int probe = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return false;
  const bool failed =
      ::connect(probe, reinterpret_cast<const sockaddr*>(name.data()), static_cast<socklen_t>(name.size())) != 0;
  const bool nowhere = failed && (errno == ECONNREFUSED || errno == ENOENT);
  raw_close(probe);
  return nowhere;
}

Status capture_messages(int fd, Object* o) {
  const char* kEmpty = "an empty datagram waits on it; receive it before the checkpoint";
  bool ends = o->type == SOCK_SEQPACKET && (o->shut_read || o->peer_shut);  // then 0 bytes may mean end of file
  if (!ends && empty_datagram_first(fd)) return refuse(fd, describe_object(*o).c_str(), kEmpty);
  PeekFromHead head(fd);
  if (!head.ok())
    return refuse(fd, describe_object(*o).c_str(),
                  "the kernel has no SO_PEEK_OFF for it; read what waits before the checkpoint");
  for (;;) {
    Message message;
    bool control = false;
    std::string nothing;
    ssize_t length = peek(fd, &nothing, MSG_TRUNC, nullptr, &control);  // tells the length, moves no offset
    if (length < 0 || (length == 0 && ends && !control)) return {};
    if (length == 0) return refuse(fd, describe_object(*o).c_str(), kEmpty);
    message.data.resize(static_cast<std::size_t>(length));
    ssize_t n = peek(fd, &message.data, 0, &message.source, &control);
    if (control) return refuse_control(fd, *o);
    if (n != length) return refuse(fd, describe_object(*o).c_str(), "its queue changes while it is read", EAGAIN);
    message.sender_gone = !message.source.empty() && leads_nowhere(message.source);
    o->queue.push_back(std::move(message));
  }
}

// TCP keeps one queue of bytes, and a peek reaches all of it at once.
Status capture_tcp_bytes(int fd, Object* o) {
  int available = 0;
  if (::ioctl(fd, SIOCINQ, &available) != 0 || available <= 0) return {};
  int offset = -1, head = 0;
  socklen_t length = sizeof(offset);
  bool moved = ::getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, &length) == 0 && offset >= 0;
  if (moved) ::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &head, sizeof(head));
  Message all;
  all.data.resize(static_cast<std::size_t>(available));
  ssize_t n = ::recv(fd, all.data.data(), all.data.size(), MSG_PEEK | MSG_DONTWAIT);
  if (moved) ::setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof(offset));
  if (n != available)
    return refuse(fd, describe_object(*o).c_str(),
                  "its queue cannot be read whole without taking it; read what waits before the checkpoint");
  o->queue.push_back(std::move(all));
  return {};
}

}  // namespace

Status capture_socket_queue(int fd, Object* o) {
  if (o->kind == Kind::kTcp) return capture_tcp_bytes(fd, o);
  if (o->type == SOCK_STREAM) return o->state == SocketState::kConnected ? capture_stream(fd, o) : Status();
  if (o->type == SOCK_SEQPACKET && o->state != SocketState::kConnected) return {};
  return capture_messages(fd, o);
}

}  // namespace shadowib::descriptors
