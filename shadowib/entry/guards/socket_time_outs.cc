// Calls on sockets that have a time-out (SO_RCVTIMEO, SO_SNDTIMEO) keep what is left of it over a stop; see
// hooks/threads/blocked_call.h. Programs that set none pay a compare. Only what says that it is of a socket is
// guarded: after a stop, read and write have all of their socket's time-out again.
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>

#include "hooks/threads/blocked_call.h"
#include "shadowib/entry/guards/guard.h"

using shadowib::Next;
using shadowib::TimedCallScope;

namespace {

Next<int(int, int, int, const void*, socklen_t)> g_setsockopt{"setsockopt"};
Next<ssize_t(int, void*, std::size_t, int)> g_recv{"recv"};
Next<ssize_t(int, void*, std::size_t, std::size_t, int)> g_recv_chk{"__recv_chk"};
Next<ssize_t(int, void*, std::size_t, int, sockaddr*, socklen_t*)> g_recvfrom{"recvfrom"};
Next<ssize_t(int, void*, std::size_t, std::size_t, int, sockaddr*, socklen_t*)> g_recvfrom_chk{"__recvfrom_chk"};
Next<ssize_t(int, msghdr*, int)> g_recvmsg{"recvmsg"};
Next<int(int, mmsghdr*, unsigned, int, timespec*)> g_recvmmsg{"recvmmsg"};
Next<ssize_t(int, const void*, std::size_t, int)> g_send{"send"};
Next<ssize_t(int, const void*, std::size_t, int, const sockaddr*, socklen_t)> g_sendto{"sendto"};
Next<ssize_t(int, const msghdr*, int)> g_sendmsg{"sendmsg"};
Next<int(int, mmsghdr*, unsigned, int)> g_sendmmsg{"sendmmsg"};
Next<int(int, sockaddr*, socklen_t*)> g_accept{"accept"};
Next<int(int, sockaddr*, socklen_t*, int)> g_accept4{"accept4"};
Next<int(int, const sockaddr*, socklen_t)> g_connect{"connect"};

std::atomic<bool> g_used{false};  // some socket has had one

// 0: none.
std::int64_t time_out_of(int fd, int option) {
  const int saved = errno;
  timeval time{};
  socklen_t length = sizeof(time);
  const bool known = ::getsockopt(fd, SOL_SOCKET, option, &time, &length) == 0;
  errno = saved;
  return known ? time.tv_sec * 1000000000LL + time.tv_usec * 1000LL : 0;
}

template <typename Call>
auto within(int fd, int option, std::int64_t number, Call call) {
  if (__builtin_expect(!g_used.load(std::memory_order_relaxed), 1)) return call();
  const std::int64_t time_out = time_out_of(fd, option);
  if (time_out == 0) return call();
  TimedCallScope timed(number, time_out, {fd, option});
  return call();
}

}  // namespace

SHADOWIB_GUARD int setsockopt(int fd, int level, int option, const void* value, socklen_t length) noexcept {
  if (level == SOL_SOCKET && (option == SO_RCVTIMEO || option == SO_SNDTIMEO))
    g_used.store(true, std::memory_order_relaxed);
  return g_setsockopt(fd, level, option, value, length);
}

SHADOWIB_GUARD ssize_t recv(int fd, void* buffer, std::size_t size, int flags) {
  return within(fd, SO_RCVTIMEO, SYS_recvfrom, [=] { return g_recv(fd, buffer, size, flags); });
}

SHADOWIB_GUARD ssize_t __recv_chk(int fd, void* buffer, std::size_t size, std::size_t room, int flags) {
  return within(fd, SO_RCVTIMEO, SYS_recvfrom, [=] { return g_recv_chk(fd, buffer, size, room, flags); });
}

SHADOWIB_GUARD ssize_t recvfrom(int fd, void* buffer, std::size_t size, int flags, sockaddr* from,
                                socklen_t* length) {
  return within(fd, SO_RCVTIMEO, SYS_recvfrom, [=] { return g_recvfrom(fd, buffer, size, flags, from, length); });
}

SHADOWIB_GUARD ssize_t __recvfrom_chk(int fd, void* buffer, std::size_t size, std::size_t room, int flags,
                                      sockaddr* from, socklen_t* length) {
  return within(fd, SO_RCVTIMEO, SYS_recvfrom,
                [=] { return g_recvfrom_chk(fd, buffer, size, room, flags, from, length); });
}

SHADOWIB_GUARD ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return within(fd, SO_RCVTIMEO, SYS_recvmsg, [=] { return g_recvmsg(fd, message, flags); });
}

SHADOWIB_GUARD int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  return within(fd, SO_RCVTIMEO, SYS_recvmmsg, [=] { return g_recvmmsg(fd, messages, count, flags, timeout); });
}

SHADOWIB_GUARD ssize_t send(int fd, const void* buffer, std::size_t size, int flags) {
  return within(fd, SO_SNDTIMEO, SYS_sendto, [=] { return g_send(fd, buffer, size, flags); });
}

SHADOWIB_GUARD ssize_t sendto(int fd, const void* buffer, std::size_t size, int flags, const sockaddr* to,
                              socklen_t length) {
  return within(fd, SO_SNDTIMEO, SYS_sendto, [=] { return g_sendto(fd, buffer, size, flags, to, length); });
}

SHADOWIB_GUARD ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return within(fd, SO_SNDTIMEO, SYS_sendmsg, [=] { return g_sendmsg(fd, message, flags); });
}

SHADOWIB_GUARD int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  return within(fd, SO_SNDTIMEO, SYS_sendmmsg, [=] { return g_sendmmsg(fd, messages, count, flags); });
}

SHADOWIB_GUARD int accept(int fd, sockaddr* from, socklen_t* length) {
  return within(fd, SO_RCVTIMEO, SYS_accept, [=] { return g_accept(fd, from, length); });
}

SHADOWIB_GUARD int accept4(int fd, sockaddr* from, socklen_t* length, int flags) {
  return within(fd, SO_RCVTIMEO, SYS_accept4, [=] { return g_accept4(fd, from, length, flags); });
}

// What is asked for again after a stop is under way already: EALREADY is then what EINPROGRESS would have been.
SHADOWIB_GUARD int connect(int fd, const sockaddr* to, socklen_t length) {
  const std::uint32_t stops = shadowib::t_timed_call.stops;
  const int result = within(fd, SO_SNDTIMEO, SYS_connect, [=] { return g_connect(fd, to, length); });
  if (result == -1 && errno == EALREADY && shadowib::t_timed_call.stops != stops) errno = EINPROGRESS;
  return result;
}
