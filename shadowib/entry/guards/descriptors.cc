// Descriptors of shadowib survive programs that close every number they can think of.
//
// To the program they do not exist: a close is answered with EBADF, as is a dup2 onto such a number (what dup2(2)
// says of numbers above the limit; ours sit directly below it). Moving ours away instead would pull them from under
// threads that are using them.
#include "shadowib/base/descriptors.h"

#include <errno.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shadowib/entry/guards/guard.h"

using shadowib::Next;

namespace {

Next<int(int)> g_close{"close"};
Next<int(int, int)> g_dup2{"dup2"};
Next<int(int, int, int)> g_dup3{"dup3"};

constexpr unsigned kUnshare = 1u << 1, kCloexec = 1u << 2;  // CLOSE_RANGE_...
constexpr int kHighestOwned = 1 << 20;                      // base/descriptors.cc owns none above

bool shielded(int fd) {
  return __builtin_expect(fd >= shadowib::lowest_owned_descriptor(), 0) && shadowib::is_owned_descriptor(fd);
}

int close_between(unsigned first, unsigned last, unsigned flags) {
  return static_cast<int>(::syscall(SYS_close_range, first, last, flags));
}

// close_range in the pieces that ours leave.
int close_around_ours(unsigned first, unsigned last, unsigned flags) {
  unsigned start = first;
  const int lowest = shadowib::lowest_owned_descriptor();
  const int from = static_cast<unsigned>(lowest) > first ? lowest : static_cast<int>(first);
  const int to = last < static_cast<unsigned>(kHighestOwned) ? static_cast<int>(last) : kHighestOwned - 1;
  for (int fd = from; fd <= to; ++fd) {
    if (!shadowib::is_owned_descriptor(fd)) continue;
    if (static_cast<unsigned>(fd) > start && close_between(start, static_cast<unsigned>(fd) - 1, flags) != 0)
      return -1;
    flags &= ~kUnshare;  // done once
    start = static_cast<unsigned>(fd) + 1;
  }
  return start <= last ? close_between(start, last, flags) : 0;
}

}  // namespace

SHADOWIB_GUARD int close(int fd) {
  if (shielded(fd)) {
    errno = EBADF;
    return -1;
  }
  return g_close.get() != nullptr ? g_close(fd) : static_cast<int>(::syscall(SYS_close, fd));
}

SHADOWIB_GUARD int close_range(unsigned first, unsigned last, int flags) noexcept {
  if (first > last || last < static_cast<unsigned>(shadowib::lowest_owned_descriptor()) ||
      (static_cast<unsigned>(flags) & kCloexec))
    return close_between(first, last, static_cast<unsigned>(flags));
  return close_around_ours(first, last, static_cast<unsigned>(flags));
}

SHADOWIB_GUARD void closefrom(int first) noexcept {
  const int saved = errno;
  if (close_range(first < 0 ? 0 : static_cast<unsigned>(first), UINT_MAX, 0) != 0)
    for (int fd = first < 0 ? 0 : first, end = static_cast<int>(sysconf(_SC_OPEN_MAX)); fd < end; ++fd) close(fd);
  errno = saved;
}

SHADOWIB_GUARD int dup2(int from, int to) noexcept {
  if (shielded(to) || shielded(from)) {
    errno = EBADF;
    return -1;
  }
  return g_dup2.get() != nullptr ? g_dup2(from, to) : static_cast<int>(::syscall(SYS_dup2, from, to));
}

SHADOWIB_GUARD int dup3(int from, int to, int flags) noexcept {
  if (shielded(to) || shielded(from)) {
    errno = EBADF;
    return -1;
  }
  return g_dup3.get() != nullptr ? g_dup3(from, to, flags) : static_cast<int>(::syscall(SYS_dup3, from, to, flags));
}
