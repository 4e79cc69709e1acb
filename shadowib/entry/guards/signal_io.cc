// A request for SIGIO that would never come is refused.
//
// The kernel's descriptors of verbs send a signal when an event is there (O_ASYNC). Ours are epoll sets, for which
// the kernel takes O_ASYNC and does nothing: a program that waits for the signal would wait for good.
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>

#include "shadowib/base/event_descriptors.h"
#include "shadowib/base/log.h"
#include "shadowib/entry/guards/guard.h"

using shadowib::Next;

namespace {

using Fcntl = int(int, int, ...);
Next<Fcntl> g_fcntl{"fcntl"};
Next<Fcntl> g_fcntl64{"fcntl64"};

std::atomic<bool> g_told{false};

bool asks_for_signals(int fd, int command, long argument) {
  if (command != F_SETFL || (argument & O_ASYNC) == 0 || !shadowib::g_event_descriptors.has(fd)) return false;
  if (!g_told.exchange(true))
    shadowib::log_line(shadowib::LogLevel::kWarn,
                       "fcntl(%d, F_SETFL, O_ASYNC): a completion channel or async descriptor sends no signals here; "
                       "poll it instead",
                       fd);
  errno = EOPNOTSUPP;
  return true;
}

// Every third argument is one register wide, and harmless where there is none.
int call(Next<Fcntl>& next, int fd, int command, long argument) {
  if (__builtin_expect(command == F_SETFL, 0) && asks_for_signals(fd, command, argument)) return -1;
  return next.get() != nullptr ? next(fd, command, argument)
                               : static_cast<int>(::syscall(SYS_fcntl, fd, command, argument));
}

}  // namespace

SHADOWIB_GUARD int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  return call(g_fcntl, fd, command, argument);
}

SHADOWIB_GUARD int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  const long argument = va_arg(arguments, long);
  va_end(arguments);
  return call(g_fcntl64, fd, command, argument);
}
