// Around the capture, in the member: bytes on TCP connections reach their receivers; nothing stays in TIME_WAIT.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#include <climits>
#include <vector>

#include "hooks/imager/descriptors.h"
#include "hooks/imager/descriptors/capture/late.h"
#include "hooks/imager/descriptors/capture/launcher_socket.h"
#include "hooks/imager/descriptors/socket_options.h"
#include "hooks/raw/proc.h"
#include "shadowib/base/deadline.h"
#include "shadowib/base/lock.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

namespace shadowib {
namespace descriptors {
namespace {

constexpr int kReceiveLock = 2;  // SOCK_RCVBUF_LOCK: the program chose the size of its receive buffer

// What prepare_descriptors() changed on one socket.
struct Widened {
  int fd;
  int low_water, no_delay, cork, receive_buffer, lock, quick_ack;
  ReceiveBuffer buffer;
};
std::vector<Widened>* g_widened = nullptr;

int get_int(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof(value);
  return ::getsockopt(fd, level, name, &value, &length) == 0 ? value : 0;
}

void set_int(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof(value)); }

bool is_tcp_connection(int fd) {  // of the job: what a launcher has sent is lost with it
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISSOCK(st.st_mode) || is_launcher_descriptor(fd)) return false;
  int protocol = get_int(fd, SOL_SOCKET, SO_PROTOCOL);
  int domain = get_int(fd, SOL_SOCKET, SO_DOMAIN);
  if (protocol != IPPROTO_TCP || (domain != AF_INET && domain != AF_INET6)) return false;
  tcp_info info{};
  socklen_t length = sizeof(info);
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state != TCP_LISTEN &&
         info.tcpi_state != TCP_CLOSE;
}

// Makes room for all that the peer may have unsent, and pushes what we have unsent: a corked or delayed segment too.
// SO_RCVLOWAT enlarges an automatic receive buffer (tcp_set_rcvlowat); a fixed one must be told.
Widened widen(int fd) {
  Widened w{.fd = fd,
            .low_water = get_int(fd, SOL_SOCKET, SO_RCVLOWAT),
            .no_delay = get_int(fd, IPPROTO_TCP, TCP_NODELAY),
            .cork = get_int(fd, IPPROTO_TCP, TCP_CORK),
            .receive_buffer = get_int(fd, SOL_SOCKET, SO_RCVBUF),
            .lock = get_int(fd, SOL_SOCKET, SO_BUF_LOCK),
            .quick_ack = get_int(fd, IPPROTO_TCP, TCP_QUICKACK),
            .buffer = ReceiveBuffer(fd)};
  if ((w.lock & kReceiveLock) != 0)
    set_int(fd, SOL_SOCKET, SO_RCVBUF, INT_MAX / 2);
  else
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, INT_MAX);
  if (w.cork != 0) set_int(fd, IPPROTO_TCP, TCP_CORK, 0);
  if (w.no_delay == 0) set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  return w;
}

void narrow(const Widened& w) {
  if ((w.lock & kReceiveLock) != 0) set_int(w.fd, SOL_SOCKET, SO_RCVBUF, w.receive_buffer / 2);
  set_int(w.fd, SOL_SOCKET, SO_RCVLOWAT, w.low_water);
  w.buffer.put_back();
  if (w.no_delay == 0) set_int(w.fd, IPPROTO_TCP, TCP_NODELAY, 0);
  if (w.cork != 0) set_int(w.fd, IPPROTO_TCP, TCP_CORK, 1);
  if (get_int(w.fd, IPPROTO_TCP, TCP_QUICKACK) != w.quick_ack) set_int(w.fd, IPPROTO_TCP, TCP_QUICKACK, w.quick_ack);
}

// A peek makes the kernel announce a window that has grown (tcp_cleanup_rbuf runs for peeks too).
void announce_window(int fd) {
  char byte;
  (void)::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
}

bool drained(const std::vector<Widened>& sockets) {
  bool all = true;
  for (const Widened& w : sockets) {
    int unsent = 0;
    announce_window(w.fd);
    if (::ioctl(w.fd, SIOCOUTQ, &unsent) == 0 && unsent > 0) all = false;
  }
  return all;
}

}  // namespace
}  // namespace descriptors

Status prepare_descriptors(int timeout_ms) {
  using namespace descriptors;
  abandon_descriptors();
  if (g_widened == nullptr) g_widened = new std::vector<Widened>();
  std::vector<int> fds;
  SHADOWIB_TRY(list_descriptors(&fds));
  for (int fd : fds)
    if (is_tcp_connection(fd)) g_widened->push_back(widen(fd));
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  while (!drained(*g_widened) && !deadline.has_passed()) {
    timespec pause{0,
                   500000};  // acknowledgements are the kernel's to send: there is nothing to wait on but the count
    ::nanosleep(&pause, nullptr);
  }
  return {};
}

void abandon_descriptors() {
  using namespace descriptors;
  forget_record_locks();
  if (g_widened == nullptr) return;
  for (auto w = g_widened->rbegin(); w != g_widened->rend(); ++w) narrow(*w);
  g_widened->clear();
}

void linger_for_kill() {
  using namespace descriptors;
  std::vector<int> fds;
  if (!list_descriptors(&fds).ok()) return;
  for (int fd : fds) {
    if (fd <= 2 || !is_tcp_connection(fd)) continue;  // what standard input leads to is not the job's
    linger reset{1, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }
}

}  // namespace shadowib
